package mesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
)

const (
	strict     = "STRICT"
	permissive = "PERMISSIVE"
	// limit bounds each wait. It is far longer than needed on a machine that is not busy.
	limit = 20 * time.Second
	// inspection is how long Envoy waits on a PERMISSIVE port for the first bytes of a silent client.
	inspection = time.Second
)

// newMesh starts a control plane with a mesh in that mode.
func newMesh(t *testing.T, mode string) *harness.Machine {
	t.Helper()
	return harness.New(t, harness.Options{Programs: programs, MeshYAML: harness.MeshYAML(mode)})
}

func add(t *testing.T, m *harness.Machine, options ...harness.ProxyOptions) []*harness.Proxy {
	t.Helper()
	proxies, err := m.Add(t.Context(), options...)
	if err != nil {
		t.Fatal(err)
	}
	return proxies
}

// must ends the test if there is an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func freeAddress(t *testing.T, m *harness.Machine) string {
	t.Helper()
	at, err := m.FreeAddress()
	must(t, err)
	return at
}

func poll(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	must(t, harness.Poll(t.Context(), limit, what, check))
}

type object = map[string]any

// edited returns the Dataplane of p with its networking changed.
func edited(t *testing.T, p *harness.Proxy, change func(networking object)) string {
	t.Helper()
	var dataplane object
	must(t, json.Unmarshal([]byte(p.YAML()), &dataplane))
	networking, ok := dataplane["networking"].(object)
	if !ok {
		t.Fatalf("the Dataplane of %s has no networking", p.Name)
	}
	change(networking)
	text, err := json.MarshalIndent(dataplane, "", "  ")
	must(t, err)
	return string(text) + "\n"
}

// inbound is an additional inbound of a proxy.
type inbound struct {
	service, protocol string
	// at is where Envoy listens, app where the application does.
	at, app     string
	serverFirst bool
}

func (i inbound) object(t *testing.T) object {
	t.Helper()
	o := object{
		"port": portOf(t, i.at), "tags": object{"kuma.io/service": i.service, "kuma.io/protocol": i.protocol},
	}
	if host, _, _ := net.SplitHostPort(i.at); host != "127.0.0.1" {
		o["address"] = host
	}
	o["servicePort"] = portOf(t, i.app)
	if i.serverFirst {
		o["serverFirst"] = true
	}
	return o
}

// withInbounds returns the Dataplane of p with additional inbounds.
func withInbounds(t *testing.T, p *harness.Proxy, more ...inbound) string {
	t.Helper()
	return edited(t, p, func(networking object) {
		inbounds, _ := networking["inbound"].([]any)
		for _, i := range more {
			inbounds = append(inbounds, i.object(t))
		}
		networking["inbound"] = inbounds
	})
}

// newInbound returns an inbound with new addresses, and starts an application behind it that serves the protocol serve.
func newInbound(t *testing.T, m *harness.Machine, service, protocol, serve string) inbound {
	t.Helper()
	i := inbound{service: service, protocol: protocol, at: freeAddress(t, m), app: freeAddress(t, m)}
	_, err := m.StartApp(t.Context(), service, serve, i.app)
	must(t, err)
	return i
}

func portOf(t *testing.T, at string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(at)
	must(t, err)
	n, err := strconv.Atoi(port)
	must(t, err)
	return n
}

// call makes one call within the limit.
func call(ctx context.Context, c harness.Caller) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return c.Call(ctx)
}

// connect opens a connection that is closed when the test ends, with a deadline.
func connect(t *testing.T, at string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: limit}).DialContext(t.Context(), "tcp", at)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(limit)))
	return conn
}

// closedWithout returns an error unless the other side closes the connection without sending anything.
func closedWithout(conn net.Conn) error {
	got := make([]byte, 64)
	n, err := conn.Read(got)
	switch {
	case n > 0:
		return fmt.Errorf("it sends %q", got[:n])
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errors.New("it stays open")
	}
	return nil // closed, by its end or by a reset
}

// stat returns a statistic of an Envoy, 0 if it does not exist yet.
func stat(t *testing.T, p *harness.Proxy, name string) int64 {
	t.Helper()
	stats, err := p.Stats(t.Context(), name)
	must(t, err)
	return stats[name]
}

// endpoints waits until the Envoy of p has exactly these endpoints for a service.
func endpoints(t *testing.T, p *harness.Proxy, service string, want ...string) {
	t.Helper()
	poll(t, fmt.Sprintf("%s of the service %s to be in %s", want, service, p.Name), func(ctx context.Context) error {
		return p.HasEndpoints(ctx, service, want...)
	})
}

// held stops a load. It fails the test unless there were calls and none of them failed.
func held(t *testing.T, load *harness.Load) harness.Report {
	t.Helper()
	r := load.Stop()
	if r.Failed > 0 || r.Calls == 0 {
		t.Errorf("want calls, and none that fails: %s", r)
	}
	return r
}

// more waits until a load has made that many more calls.
func more(t *testing.T, load *harness.Load, calls int) {
	t.Helper()
	must(t, load.WaitMore(t.Context(), calls))
}
