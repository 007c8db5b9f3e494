package faults

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// hangupDrain is the drain time of the agents. An open connection makes their drains last as long.
const hangupDrain = 8 * time.Second

// TestHangup closes the terminal of two agents, one of them behind a guard, and of the control plane. The agents
// drain, and a second signal does not shorten the drain.
func TestHangup(t *testing.T) {
	hearHangups(t)
	t.Parallel()
	m := newMesh(t, 0)
	drain := []string{"--drain-time=" + hangupDrain.String()}
	virtual, err := m.FreeAddress()
	must.Do(t, err)
	_, port, err := net.SplitHostPort(virtual)
	must.Do(t, err)
	proxies := must.Add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"t"}},
		harness.ProxyOptions{Name: "t-1", Service: "t", Protocol: "tcp", Banner: true, AgentArgs: drain},
		harness.ProxyOptions{
			Name: "t-2", Service: "t", Protocol: "tcp", Banner: true, AgentArgs: append(drain, "--virtual-probes-port="+port),
			AgentEnv: []string{"INSTANCE_IP=127.0.0.1", `KUMA_DATAPLANE_PROBES=[{"httpGet":{"path":"/","port":1}}]`},
		},
		harness.ProxyOptions{Name: "t-3", Service: "t", Protocol: "tcp", Banner: true})
	a, leaving, guarded, stays := proxies[0], proxies[1:3], proxies[2], proxies[3]
	endpoints(t, a, "t", proxies[1:]...)
	if workers, err := guarded.Agent.Children("sonde-dp"); err != nil || len(workers) != 1 {
		t.Fatalf("the guard has the workers %v, %v, want one", workers, err)
	}
	for _, p := range leaving {
		connectTo(t, a.Outbounds["t"], p.Name)
	}
	var wait sync.WaitGroup
	for _, p := range leaving {
		wait.Go(func() {
			began := time.Now()
			err := hangUp(p.Agent)
			must.Log(t, p.Agent, "drain begins")
			if err = errors.Join(err, hangUp(p.Agent)); err != nil {
				t.Error(err)
			}
			<-p.Agent.Done()
			if lived := time.Since(began); lived < hangupDrain {
				t.Errorf("%s ended %s after the signal, want a drain of %s", p.Name, lived, hangupDrain)
			}
		})
	}
	endpoints(t, a, "t", stays)
	wait.Wait()
	must.Do(t, hangUp(m.ControlPlane))
	<-m.ControlPlane.Done()
	must.Log(t, m.ControlPlane, `"control plane stopped"}`)
}

// hearHangups makes SIGHUP effective for programs that the test starts, even if the test runs under
// nohup.
func hearHangups(t *testing.T) {
	t.Helper()
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(heard) })
}

// TestNohup starts programs with SIGHUP ignored, as nohup does. They keep running when their terminal is
// closed.
func TestNohup(t *testing.T) {
	t.Parallel()
	ignoring := programs
	for _, path := range []*string{&ignoring.ControlPlane, &ignoring.Agent} {
		script := filepath.Join(t.TempDir(), filepath.Base(*path))
		must.Do(t, os.WriteFile(script, fmt.Appendf(nil, "#!/bin/sh\ntrap '' HUP\nexec %s \"$@\"\n", *path), 0o700))
		*path = script
	}
	m := harness.New(t, harness.Options{Programs: ignoring})
	p := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a"})[0]
	for _, process := range []*harness.Process{m.ControlPlane, p.Agent} {
		must.Do(t, hangUp(process))
		must.Do(t, hangUp(process))
	}
	synced(t, p)
	must.Do(t, p.WaitReady(t.Context()))
	if log := read(t, p.Agent.Log); strings.Contains(log, "drain begins") {
		t.Errorf("the agent drains:\n%s", log)
	}
}
