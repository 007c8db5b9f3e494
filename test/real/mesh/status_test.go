package mesh

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestStatus breaks a healthy mesh part by part, and repairs it.
func TestStatus(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	checked := map[string]any{"tcpSocket": map[string]any{}, "periodSeconds": 1}
	proxies := must.Add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}, ServiceProbe: checked}, harness.ProxyOptions{Name: "b-1", Service: "b", ServiceProbe: checked})
	b := proxies[1]
	const well = "ok: 1 mesh, 2 services, 2 of 2 proxies healthy\n"
	says(t, m, 0, well)

	b.App.Kill()
	says(t, m, 6, "not ok: 1 critical; 1 mesh, 2 services, 1 of 2 proxies healthy\n", "service/b ", "b-1: application probe failed: ", "calls fail from dataplane a-1", "do: sondectl why service/b\n")
	must.Do(t, b.StartApp(t.Context()))
	says(t, m, 0, well)

	must.Do(t, syscall.Kill(b.Agent.PID(), syscall.SIGSTOP))
	says(t, m, 6, "dataplane/b-1 ", "its agent is connected, but does not respond")
	must.Do(t, syscall.Kill(b.Agent.PID(), syscall.SIGCONT))
	says(t, m, 0, well)

	object := filepath.Join(m.StoreDir(), "mesh.yaml")
	written, err := os.ReadFile(object)
	must.Do(t, err)
	must.Do(t, os.Remove(object))
	says(t, m, 6, "critical   default   mesh/default ", "its Mesh object is missing, its last mode is kept")
	must.Do(t, os.WriteFile(object, []byte(strings.ReplaceAll(string(written), "STRICT", "STRICKT")), 0o600))
	says(t, m, 6, "file/mesh.yaml ", `"STRICKT": must be STRICT or PERMISSIVE`, "do: sondectl validate -f "+object)
	must.Do(t, os.WriteFile(object, written, 0o600))
	says(t, m, 0, well)

	m.ControlPlane.Kill()
	says(t, m, 3)
}

// says waits until sondectl status ends with an exit code, and its output contains these texts.
func says(t *testing.T, m *harness.Machine, code int, texts ...string) {
	t.Helper()
	must.Poll(t, fmt.Sprintf("sondectl status to end with %d, and %q", code, texts), func(ctx context.Context) error {
		out, err := m.Ctl(ctx, "status")
		exit, failed := errors.AsType[*exec.ExitError](err)
		switch {
		case err != nil && !failed:
			return err
		case failed != (code != 0) || failed && exit.ExitCode() != code:
			return fmt.Errorf("it ends with %w, and prints:\n%s", err, out)
		}
		for _, text := range texts {
			if !strings.Contains(out, text) {
				return fmt.Errorf("it does not print %q:\n%s", text, out)
			}
		}
		return nil
	})
}
