package faults

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestDrainBegins calls the sidecar's preStop hook while a client outside of the mesh keeps connections. Envoy asks
// the client to close them and still serves every request; later the agent drains and ends as usual.
func TestDrainBegins(t *testing.T) {
	t.Parallel()
	m := harness.New(t, harness.Options{Programs: programs, MeshYAML: harness.MeshYAML("PERMISSIVE")})
	p := must.Add(t, m, harness.ProxyOptions{Name: "b-1", Service: "b"})[0]
	kept := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(kept.CloseIdleConnections)
	ask := func() (last bool, err error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.Inbound+"/", http.NoBody)
		if err != nil {
			return false, err
		}
		answer, err := kept.Do(request)
		if err != nil {
			return false, err
		}
		defer answer.Body.Close() //nolint:errcheck // it is read to its end
		if answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("the answer is %s", answer.Status)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.Close, err
	}
	must.Poll(t, "the service to answer", func(context.Context) error {
		_, err := ask()
		return err
	})
	if last, err := ask(); last || err != nil {
		t.Fatalf("before the drain: connection to be closed: %v, %v", last, err)
	}
	for range 2 { // the kubelet may call a hook twice
		out, err := exec.CommandContext(t.Context(), programs.Agent, "drain", "--begin", "--work-dir="+p.Dir()).CombinedOutput()
		if err != nil {
			t.Fatalf("sonde-dp drain --begin: %v: %s", err, out)
		}
	}
	for _, connection := range []string{"the one that was kept", "a new one"} {
		if last, err := ask(); !last || err != nil {
			t.Errorf("after the drain has begun, on %s: connection to be closed: %v, %v", connection, last, err)
		}
	}
	ctx := wait.Context(t)
	if err := p.Agent.Terminate(ctx); err != nil {
		t.Error(err)
	}
}
