package mesh

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

const (
	strict     = "STRICT"
	permissive = "PERMISSIVE"
	// inspection is how long Envoy waits for the first bytes of a silent client on a PERMISSIVE port.
	inspection = time.Second
)

// newMesh starts a control plane with a mesh in the given mode.
func newMesh(t *testing.T, mode string) *harness.Machine {
	t.Helper()
	return harness.New(t, harness.Options{Programs: programs, MeshYAML: harness.MeshYAML(mode)})
}

type object = map[string]any

// edited returns the Dataplane of p with changed networking.
func edited(t *testing.T, p *harness.Proxy, change func(networking object)) string {
	t.Helper()
	var dataplane object
	must.Do(t, json.Unmarshal([]byte(p.YAML()), &dataplane))
	networking, ok := dataplane["networking"].(object)
	if !ok {
		t.Fatalf("the Dataplane of %s has no networking", p.Name)
	}
	change(networking)
	text, err := json.MarshalIndent(dataplane, "", "  ")
	must.Do(t, err)
	return string(text) + "\n"
}

// inbound is an additional inbound of a proxy.
type inbound struct {
	service, protocol string
	// at is where Envoy listens, and app where the application listens.
	at, app     string
	serverFirst bool
}

func (i inbound) object(t *testing.T) object {
	t.Helper()
	o := object{
		"port": must.Port(t, i.at), "tags": object{"kuma.io/service": i.service, "kuma.io/protocol": i.protocol},
	}
	if host, _, _ := net.SplitHostPort(i.at); host != "127.0.0.1" {
		o["address"] = host
	}
	o["servicePort"] = must.Port(t, i.app)
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

// newInbound returns an inbound with new addresses, and starts its application, which serves the protocol serve.
func newInbound(t *testing.T, m *harness.Machine, service, protocol, serve string) inbound {
	t.Helper()
	i := inbound{service: service, protocol: protocol, at: must.FreeAddress(t, m), app: must.FreeAddress(t, m)}
	_, err := m.StartApp(t.Context(), service, serve, i.app)
	must.Do(t, err)
	return i
}

// closedWithout returns an error unless the peer closes the connection without sending anything.
func closedWithout(conn net.Conn) error {
	got := make([]byte, 64)
	n, err := conn.Read(got)
	switch {
	case n > 0:
		return fmt.Errorf("it sends %q", got[:n])
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errors.New("connection stays open")
	}
	return nil // closed, by FIN or by a reset
}

// stat returns a statistic of an Envoy, 0 if it does not exist yet.
func stat(t *testing.T, p *harness.Proxy, name string) int64 {
	t.Helper()
	stats, err := p.Stats(t.Context(), name)
	must.Do(t, err)
	return stats[name]
}
