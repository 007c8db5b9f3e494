package dpagent_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// drainPosts are the requests that the agent sends to Envoy during a drain, in this order. The first two begin the
// drain.
var drainPosts = []string{
	"/drain_listeners?graceful&inboundonly&skip_exit", "/runtime_modify?" + mesh.RuntimeEnding + "=100", "/drain_listeners?inboundonly", "/drain_listeners",
}

// posted fails the test unless the requests sent to Envoy so far equal want.
func (r *running) posted(when string, want []string) {
	r.t.Helper()
	synctest.Wait()
	if got := r.envoys.Last().Posts(); !slices.Equal(got, want) {
		r.t.Errorf("%s: requests to Envoy are %q, want %q", when, got, want)
	}
}

// Gauges of open requests and connections.
const (
	openRequest  = "cluster.inbound_8080.upstream_rq_active: 1\n"
	openOutbound = "http.outbound_db.downstream_rq_active: 1\n"
)

// quietTime is how long the inbound must be idle before the listeners close; poll is the interval of checks.
const (
	quietTime = time.Second
	poll      = 100 * time.Millisecond
)

func TestDrainWaits(t *testing.T) {
	tests := map[string]struct {
		gauges string
		posts  int // number of drainPosts sent while work is open
	}{
		"request":        {openRequest, 2},
		"connection":     {"listener.inbound_5432.downstream_cx_active: 1\n", 2},
		"unread answer":  {"http.inbound_8080.downstream_cx_tx_bytes_buffered: 100\n", 2},
		"call to others": {openOutbound, 3},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			w := newWorld(t)
			r := w.start(func(o *dpagent.Options) { o.DrainTime = time.Minute })
			w.envoys.Last().SetGauges(tc.gauges)
			r.agent.Drain()
			w.Expect(func(m *agentMessage) bool { return m.GetDraining() != nil })
			time.Sleep(30 * time.Second)
			if code, body := r.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "is draining") {
				t.Errorf("/readyz = %d %s, want 503 with the reason", code, body)
			}
			r.stillRuns()
			r.posted("while it is open", drainPosts[:tc.posts])
			w.envoys.Last().SetGauges("")
			if took := r.waitEnd(); took > quietTime+poll {
				t.Errorf("the agent ended %s after all work, want %s", took, quietTime)
			}
			r.posted("at the end", drainPosts)
			r.logged("drain done")
		})
	}
}

func TestClientsAreToldOfTheDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "drain-state")
		r := w.start()
		w.SendDrainState(&agentv1.DrainState{Node: "taint of node a"})
		r.posted("the pod stays", []string{})
		w.SendDrainState(&agentv1.DrainState{Terminating: true})
		r.posted("it is being deleted", drainPosts[:2])
		time.Sleep(time.Minute)
		r.stillRuns()
		r.posted("a minute later", drainPosts[:2])
	})
}

func TestDrainEndsAtItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start(func(o *dpagent.Options) { o.DrainTime = 2 * time.Second })
		w.envoys.Last().SetGauges(openRequest)
		r.agent.Drain()
		if took := r.waitEnd(); took != 2*time.Second {
			t.Errorf("the drain took %s, want all of its 2s", took)
		}
		r.logged("drain cut short")
		<-w.envoys.Last().Ended()
	})
}

// TestDrainOfAnOlderBootstrap drains an Envoy whose runtime cannot be changed, since an older control plane configured
// it.
func TestDrainOfAnOlderBootstrap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start()
		w.envoys.Last().Refuse("/runtime_modify", "No admin layer specified")
		r.agent.Drain()
		if took := r.waitEnd(); took > quietTime+poll {
			t.Errorf("the drain took %s, want %s", took, quietTime)
		}
		r.logged("requests without an application are not held")
		r.logged("drain done")
	})
}

func TestDrainWithoutControlPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start()
		w.Stop()
		r.logged("session with the control plane ended")
		if code, body := r.get("/readyz"); code != http.StatusOK {
			t.Errorf("/readyz without a control plane = %d %s, want 200: the data plane still works", code, body)
		}
		const notice = 2 * time.Second // timeout after which the drain begins without an acknowledgement
		r.agent.Drain()
		if took := r.waitEnd(); took < notice+quietTime || took > notice+quietTime+poll {
			t.Errorf("the drain took %s, want %s", took, notice+quietTime)
		}
		r.logged("control plane did not acknowledge the drain notice")
		r.logged("drain done")
	})
}

func TestDrainIsSaidAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start(func(o *dpagent.Options) { o.DrainTime = time.Hour })
		w.envoys.Last().SetGauges(openRequest)
		r.agent.Drain()
		w.Expect(func(m *agentMessage) bool { return m.GetDraining() != nil })
		w.Restart()
		if hello := w.ExpectHello(); !hello.GetDraining() {
			t.Errorf("Hello of a draining agent = %v, want draining", hello)
		}
		w.envoys.Last().SetGauges("")
		r.waitEnd()
	})
}

func TestDrainBeforeJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run(w.options())
		r.logged("failed to join, retrying")
		r.agent.Drain()
		if took := r.waitEnd(); took != 0 {
			t.Errorf("the agent ended after %s, want at once", took)
		}
	})
}
