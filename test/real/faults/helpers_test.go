package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

const (
	// pause of a load's callers between two calls.
	pause = 10 * time.Millisecond
)

// newMesh starts a control plane with a mesh in STRICT mode. certLife is the lifetime of the proxies' certificates; 0
// means the default.
func newMesh(t *testing.T, certLife time.Duration) *harness.Machine {
	t.Helper()
	return harness.New(t, harness.Options{Programs: programs, MeshYAML: meshYAML(certLife)})
}

// meshYAML returns the Mesh of newMesh.
func meshYAML(certLife time.Duration) string {
	yaml := harness.MeshYAML("STRICT")
	if certLife > 0 {
		yaml += fmt.Sprintf("      dpCert: {rotation: {expiration: %s}}\n", certLife)
	}
	return yaml
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must.Do(t, err)
	return string(data)
}

// synced waits until agent and Envoy of each proxy are connected and Envoy has accepted its whole
// configuration.
func synced(t *testing.T, proxies ...*harness.Proxy) {
	t.Helper()
	for _, p := range proxies {
		must.Poll(t, p.Name+" to have everything", p.Synced)
	}
}

// endpoints waits until the Envoy of p has exactly these endpoints for a service.
func endpoints(t *testing.T, p *harness.Proxy, service string, want ...*harness.Proxy) {
	t.Helper()
	var addresses []string
	for _, w := range want {
		addresses = append(addresses, w.Inbound)
	}
	must.Poll(t, "the endpoints of "+service+" in "+p.Name, func(ctx context.Context) error {
		return p.HasEndpoints(ctx, service, addresses...)
	})
}

// httpCallers call a service through p's outbound: over a new connection for each call, and over one
// kept connection.
func httpCallers(p *harness.Proxy, service string) []harness.Caller {
	url := "http://" + p.Outbounds[service] + "/"
	return []harness.Caller{harness.NewHTTPCaller(url, false, false), harness.NewHTTPCaller(url, true, false)}
}

func tcpCallers(p *harness.Proxy, service string) []harness.Caller {
	return []harness.Caller{harness.NewTCPCaller(p.Outbounds[service], false), harness.NewTCPCaller(p.Outbounds[service], true)}
}

func startLoad(t *testing.T, callers ...harness.Caller) *harness.Load {
	t.Helper()
	load := harness.StartLoad(t.Context(), pause, callers...)
	t.Cleanup(func() { load.Stop() })
	return load
}

// reaches waits until an instance responds to a call of a load.
func reaches(t *testing.T, load *harness.Load, instance string) {
	t.Helper()
	before := load.Report().Instances[instance]
	must.Poll(t, instance+" to answer", func(context.Context) error {
		if r := load.Report(); r.Instances[instance] == before {
			return errors.New(r.String())
		}
		return nil
	})
}

// metrics returns the control plane's metrics, by name and labels.
func metrics(t *testing.T, m *harness.Machine) map[string]float64 {
	t.Helper()
	all, err := m.Metrics(t.Context())
	must.Do(t, err)
	return all
}

// statusOf returns the HTTP status in an error. Its Code is 0 if the error has no status.
func statusOf(err error) *harness.StatusError {
	if status, ok := errors.AsType[*harness.StatusError](err); ok {
		return status
	}
	return &harness.StatusError{}
}

// kill kills a process that the test did not start, as kill -9 does.
func kill(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }

// terminate sends SIGTERM to a process without waiting for its end.
func terminate(p *harness.Process) error { return syscall.Kill(p.PID(), syscall.SIGTERM) }

// hangUp sends a process the signal of a closed terminal.
func hangUp(p *harness.Process) error { return syscall.Kill(p.PID(), syscall.SIGHUP) }
