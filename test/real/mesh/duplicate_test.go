package mesh

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestTwoAgentsOfOneName starts a second agent with the name and token of a running agent. The control plane rejects
// the second agent, and both agents and sondectl report the conflict. After the first agent dies, the second agent
// joins.
func TestTwoAgentsOfOneName(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	first := must.Add(t, m, harness.ProxyOptions{Name: "b-1", Service: "b"})[0]
	second := *first
	second.Admin = must.FreeAddress(t, m)
	second.AgentArgs = []string{"--work-dir=" + filepath.Join(t.TempDir(), "work")}
	must.Do(t, second.RunAgent())
	says := func(p *harness.Proxy, want string) func(context.Context) error {
		return func(ctx context.Context) error {
			out, err := m.Get(ctx, "http://"+p.Admin+"/readyz?verbose")
			if refused, ok := errors.AsType[*harness.StatusError](err); ok {
				out, err = refused.Body, nil
			}
			if err == nil && !strings.Contains(out, want) {
				err = fmt.Errorf("it says %s", out)
			}
			return err
		}
	}
	must.Poll(t, "the second agent to say that it is one too many", says(&second, "duplicate: another agent with this name is connected from 127.0.0.1"))
	must.Poll(t, "the first agent to warn", says(first, "duplicate: another agent with this name called from 127.0.0.1"))
	must.Poll(t, "the first agent to be ready", first.Synced)
	for _, command := range [][]string{{"why", "b-1"}, {"get", "proxies"}} {
		must.Poll(t, "sondectl to report the duplicate", func(ctx context.Context) error {
			out, err := m.Ctl(ctx, command...)
			if err == nil && !strings.Contains(out, "duplicate: another agent with this name") {
				err = fmt.Errorf("%s says %s", command, out)
			}
			return err
		})
	}
	must.Poll(t, "the second agent to have tried three times", func(ctx context.Context) error {
		out, err := m.Get(ctx, "http://"+m.Health+"/metrics")
		if tries := regexp.MustCompile(`sonde_agents_joins_total{result="AlreadyExists"} (\d+)`).FindStringSubmatch(out); err == nil && (tries == nil || len(tries[1]) == 1 && tries[1] < "3") {
			err = fmt.Errorf("it has tried %q", tries)
		}
		return err
	})
	if n, err := m.ControlPlane.Lines("agent connected", "b-1"); err != nil || n != 1 {
		t.Errorf("an agent of b-1 has connected %d times, %v, want once", n, err)
	}
	first.Agent.Kill()
	must.Poll(t, "the second agent to take over", func(ctx context.Context) error {
		_, err := m.Get(ctx, "http://"+second.Admin+"/readyz")
		return err
	})
}
