package dpagent_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// portIs waits until a port accepts connections, or until it does not. After the control plane was away, the next session is up to 10 s later.
func portIs(t testing.TB, at string, open bool) {
	t.Helper()
	eventually(t, 30*time.Second, func() string {
		c, err := net.Dial("tcp", at)
		if err == nil {
			_ = c.Close()
		}
		if (err == nil) != open {
			return fmt.Sprintf("connect to %s: %v", at, err)
		}
		return ""
	})
}

func TestProbesOfTheControlPlane(t *testing.T) {
	t.Parallel()
	application, err := net.Listen("tcp", "127.0.0.1:0") // its backlog is enough for all connections
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = application.Close() }()
	at := fmt.Sprintf("127.0.0.2:%d", freePort(t))
	probes := func(address string) *agentv1.ControlMessage {
		return &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Probes{Probes: &agentv1.Probes{
			Http: "127.0.0.2:19000", Ports: []*agentv1.ProbePort{{Address: address, Application: application.Addr().String()}},
		}}}
	}
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	r := startAgent(t, options(t, cp))
	r.waitReady()
	portIs(t, at, false)
	cp.send <- probes(at)
	portIs(t, at, true)
	r.waitReady()

	cp.send <- probes("localhost:1")
	r.logged(`ports[0].address: \"localhost:1\": must be ip:port`)
	portIs(t, at, true)

	cp.send <- probes(application.Addr().String()) // the application has it
	eventually(t, 10*time.Second, func() string {
		if code, body := r.get("/readyz"); code == http.StatusOK || !strings.Contains(body, "address already in use") {
			return fmt.Sprintf("/readyz = %d %q", code, body)
		}
		return ""
	})
	cp.send <- probes(at)
	r.waitReady()
	portIs(t, at, true)

	cp.stop()
	r.logged("session with the control plane ended")
	portIs(t, at, true)
	cp.start() // it is too old to name probes
	portIs(t, at, false)
	r.waitReady()
}
