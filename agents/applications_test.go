package agents_test

import (
	"errors"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/agents"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/facts"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/meshview"
)

// fullDisk rejects the state of applications once it is full.
type fullDisk struct {
	facts.Storage
	full *bool
}

func (f fullDisk) Write(name string, data []byte) error {
	if *f.full && strings.HasPrefix(name, "applications/") {
		return errors.New("no space left on device")
	}
	return f.Storage.Write(name, data)
}

func TestFullDiskKeepsNoDeadEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := false
		h, a := joinedWithProbe(t, func(o *agents.Options) { o.Storage = fullDisk{o.Storage, &full} })
		a.connect(false)
		a.reportApplications(web)
		h.becomes("web", meshview.Ready, meshview.NoReason)
		full = true
		a.reportApplications(web + " refused")
		h.becomes("web", meshview.NotReady, meshview.ApplicationNotReady)
		a.reportApplications(web)
		h.becomes("web", meshview.Ready, meshview.NoReason)
		if lines := h.log.Lines("failed to store the state of applications", "no space left on device"); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
	})
}

// hungDisk hangs while it writes the state of applications of web-1, until the test releases it.
type hungDisk struct {
	facts.Storage
	hangs   *atomic.Bool
	waiting chan<- struct{}
	goOn    <-chan struct{}
}

func (d hungDisk) Write(name string, data []byte) error {
	if d.hangs.Load() && name == "applications/default/web-1" {
		d.waiting <- struct{}{}
		<-d.goOn
	}
	return d.Storage.Write(name, data)
}

// TestHungDiskKeepsNoDeadEndpoint checks that web-2 fails while the write of web-1's record hangs.
func TestHungDiskKeepsNoDeadEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		waiting, goOn := make(chan struct{}, 1), make(chan struct{})
		views := make(chan *meshview.View, 100)
		h, a := joinedWithProbe(t, func(o *agents.Options) { o.Storage = hungDisk{o.Storage, &hangs, waiting, goOn} })
		h.apply = func(c meshview.Change) { views <- c.After }
		h.restart()
		h.put(withProbe(same))
		h.put(withProbe(func(d *mesh.Dataplane) { d.Name, d.Spec.Networking.Address = "web-2", "10.0.0.2" }))
		h.synced()
		b := h.agent("web-2")
		b.envoy.Accepted = []netip.AddrPort{netip.MustParseAddrPort("10.0.0.2:8080")}
		b.mustJoin()
		// is must not wait, since the clock does not advance while a session waits to write.
		is := func(name string, health meshview.Health, reason meshview.Reason) {
			for e := endpointOf(<-views, "web", name); e == nil || e.Health != health || e.Reason != reason; e = endpointOf(<-views, "web", name) {
			}
		}
		a.connect(false)
		b.connect(false)
		a.reportApplications(web)
		is("web-1", meshview.Ready, meshview.NoReason)
		b.reportApplications("10.0.0.2:8080")
		is("web-2", meshview.Ready, meshview.NoReason)
		a.heard() // its record must be written before the disk hangs
		b.heard()

		hangs.Store(true)
		goOnce := sync.OnceFunc(func() { close(goOn) })
		t.Cleanup(goOnce)
		a.reportApplications(web + " refused")
		<-waiting
		is("web-1", meshview.NotReady, meshview.ApplicationNotReady)
		b.reportApplications("10.0.0.2:8080 refused")
		is("web-2", meshview.NotReady, meshview.ApplicationNotReady)
		goOnce()
		b.heard()
		if data, err := h.state.Read("applications/default/web-2"); err != nil || !strings.Contains(string(data), "refused") {
			t.Errorf("the record of web-2 is %q, %v", data, err)
		}
	})
}

// TestBrokenRecordIsForgotten restarts a control plane with an unreadable record.
func TestBrokenRecordIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := joinedWithProbe(t, nil)
		h.becomes("web", meshview.NotReady, meshview.ApplicationNotReady)
		h.stop()
		if err := h.state.Write("applications/default/web-1", []byte("{")); err != nil {
			t.Fatal(err)
		}
		h.start()
		h.put(withProbe(same))
		h.synced()
		h.becomes("web", meshview.Ready, meshview.NoReason)
		if lines := h.log.Lines("failed to read the stored state of a proxy's applications", "mesh=default proxy=web-1"); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
	})
}

// TestRecordsOfProxiesThatAreGone removes a Dataplane: the stored state of its applications stays while its certificate
// is valid.
func TestRecordsOfProxiesThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := joinedWithProbe(t, nil)
		h.delete("web-1")
		h.why(map[string]string{web: notReported})
		h.ahead.Store(int64(25 * time.Hour))
		h.why(map[string]string{})
		if names, err := h.state.List("applications/default"); err != nil || len(names) != 0 {
			t.Errorf("records %v, error %v", names, err)
		}
		if at := netip.MustParseAddrPort(web); h.server.NotServing("default/web-1")[at] != "" {
			t.Error("the state is still known")
		}
	})
}

// TestInboundThatDidNotServe adds a probe in the same change that declares the inbound ready: the inbound waits for its
// first report, as a new inbound does.
func TestInboundThatDidNotServe(t *testing.T) {
	for name, change := range map[string]func(*mesh.Inbound){
		"ignored":            func(in *mesh.Inbound) { in.State = mesh.InboundIgnored },
		"ignored, probed":    func(in *mesh.Inbound) { in.State, in.ServiceProbe = mesh.InboundIgnored, &mesh.ServiceProbe{} },
		"not ready":          func(in *mesh.Inbound) { in.State = mesh.InboundNotReady },
		"declared not ready": func(in *mesh.Inbound) { in.Health = &mesh.Health{Ready: new(false)} },
	} {
		virtual.Run(t, name, func(t *testing.T) {
			h, a := joined(t, nil)
			a.connect(false)
			h.becomes("web", meshview.Ready, meshview.NoReason)
			before := dataplane("default", "web-1", "web")
			in := &before.Spec.Networking.Inbound[0]
			change(in)
			h.put(before)
			h.put(withProbe(same))
			h.why(map[string]string{web: notReported})
			h.becomes("web", meshview.NotReady, meshview.ApplicationNotReady)
			a.reportApplications(web)
			h.becomes("web", meshview.Ready, meshview.NoReason)
		})
	}
}

// TestProbeWithoutAVerdict checks that a missing verdict changes only the displayed reason.
func TestProbeWithoutAVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joinedWithProbe(t, nil)
		a.connect(false)
		none := func(reason string) {
			a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Readiness{Readiness: &agentv1.Readiness{
				Inbounds: []*agentv1.InboundReadiness{{Inbound: web, NoVerdict: true, Reason: reason}},
			}}})
		}
		none("unexpected EOF")
		h.why(map[string]string{web: "application probe without a verdict: unexpected EOF"})
		none("too many open files")
		h.why(map[string]string{web: "application probe without a verdict: too many open files"})
		a.reportApplications(web + " refused")
		a.heard()
		h.why(map[string]string{web: failed + "refused"})
		if lines := h.log.Lines("level=WARN", "application not ready", "reason=refused"); len(lines) != 1 {
			t.Errorf("logged %q", lines)
		}
		none("unexpected EOF")
		a.heard()
		h.why(map[string]string{web: failed + "refused"})
		a.reportApplications(web)
		h.becomes("web", meshview.Ready, meshview.NoReason)
		none("unexpected EOF")
		a.heard()
		h.why(map[string]string{})
		h.becomes("web", meshview.Ready, meshview.NoReason)
	})
}
