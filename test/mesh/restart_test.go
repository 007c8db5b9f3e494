package mesh

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
)

// envoyOf returns the process id of the Envoy of p.
func envoyOf(t *testing.T, p *harness.Proxy) int {
	t.Helper()
	pid, err := p.EnvoyPID()
	must(t, err)
	return pid
}

// gone waits until a process has ended. It may still be a zombie.
func gone(t *testing.T, pid int) {
	t.Helper()
	poll(t, fmt.Sprintf("process %d to end", pid), func(context.Context) error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			return nil
		}
		if err != nil {
			return err
		}
		_, state, _ := strings.Cut(string(stat), ") ")
		if strings.HasPrefix(state, "Z") {
			return nil
		}
		return errors.New("it runs")
	})
}

func TestRestarts(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	proxies := add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}},
		harness.ProxyOptions{Name: "b-1", Service: "b", AgentArgs: []string{"--drain-time=2s"}},
	)
	a, b := proxies[0], proxies[1]
	serves := func() {
		t.Helper()
		answersOf(t, a.Outbounds["b"], "b-1")
	}
	serves()

	first := envoyOf(t, b)
	must(t, syscall.Kill(first, syscall.SIGKILL))
	poll(t, "the agent to start Envoy again", func(context.Context) error {
		pid, err := b.EnvoyPID()
		if err == nil && pid == first {
			err = errors.New("the old one runs")
		}
		return err
	})
	must(t, b.WaitReady(t.Context()))
	poll(t, "b-1 to have everything", b.Synced)
	serves()

	second := envoyOf(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	must(t, b.Agent.Terminate(ctx))
	gone(t, second)
	endpoints(t, a, "b", b.Inbound) // the only endpoint stays, although it drained
	must(t, b.StartAgent(t.Context()))
	must(t, b.WaitReady(t.Context()))
	serves()

	third := envoyOf(t, b)
	started := time.Now()
	b.Agent.Kill()
	gone(t, third)
	t.Logf("Envoy ended %s after its agent was killed", time.Since(started))
	endpoints(t, a, "b", b.Inbound) // silence is not death
	must(t, b.StartAgent(t.Context()))
	must(t, b.WaitReady(t.Context()))
	serves()

	// the caller's Envoy is killed, too
	must(t, syscall.Kill(envoyOf(t, a), syscall.SIGKILL))
	serves()
}
