package agents_test

import (
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/agents"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/meshview"
)

// joined returns a joined agent, in a mesh with a view.
func joined(t *testing.T, bend func(*agents.Options)) (*harness, *agent) {
	t.Helper()
	h := newHarness(t, bend)
	h.fill("web-1")
	a := h.agent("web-1")
	a.mustJoin()
	return h, a
}

func draining() *agentv1.AgentMessage {
	return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Draining{Draining: &agentv1.Draining{}}}
}

// unknown is a message of a later version of the protocol.
func unknown() *agentv1.AgentMessage {
	m := &agentv1.AgentMessage{}
	m.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), "later"))
	return m
}

func TestSessionIsShownToPeople(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		began := time.Now()
		a.connect(false)
		h.eventually("the agent is listed with what it uses", func() bool {
			return h.server.Agents()["default/web-1"].GetLeafSerial() != ""
		})
		got := h.server.Agents()["default/web-1"]
		want := &adminv1.Agent{
			ConnectedSince: timestamppb.New(began),
			Version:        "0.1", EnvoyVersion: "1.40.0", Features: []string{"a", "queries", "service-probes"}, BundleId: a.bundle.GetId(),
			LeafSerial: a.leaf.SerialNumber.Text(16), CertificateExpires: timestamppb.New(a.leaf.NotAfter),
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
		if n := h.metric("sonde_agents_connected", ""); n != 1 {
			t.Errorf("sonde_agents_connected = %v, want 1", n)
		}
		long := strings.Repeat("1", 1000)
		a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Version{Version: &agentv1.Version{Sonde: "0.2", Envoy: long}}})
		h.eventually("the new versions are listed", func() bool {
			got := h.server.Agents()["default/web-1"]
			return got.GetVersion() == "0.2" && got.GetEnvoyVersion() == long[:64]
		})
		a.leave()
		h.eventually("no agent is connected", func() bool { return len(h.server.Agents()) == 0 })
	})
}

func TestUnsupportedVersionIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, func(o *agents.Options) { o.Version = "v0.3.0" })
		a.open()
		a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{Hello: &agentv1.Hello{InUse: a.inUse()}}})
		for version, problem := range map[string]bool{"v0.1.0": true, "v0.2.9": false} {
			a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Version{Version: &agentv1.Version{Sonde: version}}})
			h.eventually("what is wrong with version "+version, func() bool {
				got := h.server.Agents()["default/web-1"]
				return got.GetVersion() == version && (got.GetVersionSkew() != "") == problem
			})
		}
	})
}

// TestRefusedCalls checks that refused calls are shown for a minute, and reported once.
func TestRefusedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		h, a := joined(t, func(o *agents.Options) {
			o.CallsRefused = func(_ identity.Subject, r *agentv1.Refusal) { told = append(told, r.GetCause()) }
		})
		a.connect(false)
		says := func(all ...*agentv1.Refusal) {
			a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Refusals{Refusals: &agentv1.Refusals{Refusals: all}}})
		}
		shown := func(want ...string) {
			t.Helper()
			h.eventually("the refused calls that are shown", func() bool { return slices.Equal(h.server.Agents()["default/web-1"].GetRefused(), want) })
		}
		const answers = "answers of the application that HTTP clients accept and Envoy does not, inbound 8080: "
		says(&agentv1.Refusal{Cause: "answers", Where: "inbound 8080", Count: 12})
		shown(answers + "12 in the last minute")
		says(&agentv1.Refusal{Cause: "answers", Where: "inbound 8080", Count: 5}, &agentv1.Refusal{Cause: "upgrades", Where: "service db", Count: 1})
		shown(answers+"5 in the last minute", "upgrades to protocols that Envoy does not support, service db: 1 in the last minute")
		says()
		shown()
		if want := []string{"answers", "upgrades"}; !slices.Equal(told, want) {
			t.Errorf("events of %q, want %q", told, want)
		}
	})
}

// TestEnvoyThatDoesNotRun checks that a stopped Envoy is shown as long as the session lasts that reported it.
func TestEnvoyThatDoesNotRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.connect(false)
		says := func(down string) {
			a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_EnvoyState{EnvoyState: &agentv1.EnvoyState{Down: down}}})
		}
		shown := func(want string) {
			t.Helper()
			h.eventually("what is shown of its Envoy is "+want, func() bool {
				got := h.server.Agents()["default/web-1"]
				return got != nil && got.GetEnvoyDown() == want
			})
		}
		shown("")
		says("exit status 1" + strings.Repeat(".", 1000))
		shown(("exit status 1" + strings.Repeat(".", 1000))[:512])
		says("")
		shown("")
		says("exit status 2")
		shown("exit status 2")
		b := *a
		b.connect(false)
		shown("")
		if n := len(h.log.Lines("level=WARN", "envoy of a proxy is not running", "web-1")); n != 2 {
			t.Errorf("logged %d times, want twice", n)
		}
	})
}

func TestSessionRefuses(t *testing.T) {
	features := make([]string, 100)
	for i := range features {
		features[i] = "f"
	}
	hello := func(h *agentv1.Hello) *agentv1.AgentMessage {
		return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{Hello: h}}
	}
	tests := map[string]struct {
		messages []*agentv1.AgentMessage
		code     codes.Code
		text     string
	}{
		"no message":            {nil, codes.DeadlineExceeded, "no Hello within"},
		"unknown messages only": {[]*agentv1.AgentMessage{unknown(), unknown()}, codes.DeadlineExceeded, "no Hello within"},
		"not Hello first":       {[]*agentv1.AgentMessage{draining()}, codes.InvalidArgument, "must be Hello"},
		"Hello twice":           {[]*agentv1.AgentMessage{hello(&agentv1.Hello{}), hello(&agentv1.Hello{})}, codes.InvalidArgument, "one Hello"},
		"too many features":     {[]*agentv1.AgentMessage{hello(&agentv1.Hello{Features: features})}, codes.InvalidArgument, "features"},
		"a long feature":        {[]*agentv1.AgentMessage{hello(&agentv1.Hello{Features: []string{string(make([]byte, 100))}})}, codes.InvalidArgument, "feature"},
		"a large message": {
			[]*agentv1.AgentMessage{hello(&agentv1.Hello{}), {Message: &agentv1.AgentMessage_InUse{InUse: &agentv1.InUse{BundleId: string(make([]byte, 20<<10))}}}},
			codes.InvalidArgument, "bytes",
		},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			_, a := joined(t, nil)
			a.open()
			for _, m := range tc.messages {
				a.send(m)
			}
			wantStatus(t, a.ending(), tc.code, tc.text)
		})
	}
}

func TestSessionEndsBeforeHello(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a := joined(t, nil)
		a.open()
		if err := a.stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		if err := a.ending(); !errors.Is(err, io.EOF) {
			t.Errorf("the session ends with %v, want io.EOF", err)
		}
	})
}

func TestSessionNeedsACertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		a := &agent{h: h, name: "web-1"}
		a.open()
		wantStatus(t, a.ending(), codes.Unauthenticated, "no client certificate")
	})
}

func TestUnknownMessagesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.open()
		a.send(unknown())
		a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{Hello: &agentv1.Hello{InUse: a.inUse()}}})
		if a.receive().GetWelcome() == nil {
			t.Fatal("no Welcome after an unknown message")
		}
		a.send(unknown())
		h.eventually("both are counted", func() bool { return h.metric("sonde_agents_unknown_messages_total", "") == 2 })
		a.send(draining())
		if m := a.receive(); m.GetDrainRecorded() == nil {
			t.Errorf("after an unknown message: %v, want DrainRecorded", m)
		}
	})
}

func TestNewerSessionReplaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.connect(false)
		b := *a
		b.connect(false)
		wantStatus(t, a.ending(), codes.Aborted, "newer session")
		if n := len(h.server.Agents()); n != 1 {
			t.Errorf("%d agents are listed, want 1", n)
		}
		b.send(draining())
		if m := b.receive(); m.GetDrainRecorded() == nil {
			t.Errorf("the newer session got %v, want DrainRecorded", m)
		}
	})
}

func TestSessionsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, func(o *agents.Options) { o.SetLimits(agents.Limits{MaxSessions: 1}) })
		h.fill("web-2")
		b := h.agent("web-2")
		b.mustJoin()
		a.connect(false)
		b.open()
		b.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{Hello: &agentv1.Hello{}}})
		wantStatus(t, b.ending(), codes.ResourceExhausted, "sessions are open")
		c := *a
		c.connect(false) // the new session replaces its own session, so it does not count twice
	})
}

func TestLogSaysWhyASessionEnded(t *testing.T) {
	tests := map[string]struct {
		end  func(a *agent)
		want string
	}{
		"it ends it":     {func(a *agent) { _ = a.stream.CloseSend() }, `reason="the agent ended its session"`},
		"it is killed":   {func(a *agent) { a.leave() }, `reason="the connection was lost"`},
		"it is replaced": {func(a *agent) { b := *a; b.connect(false) }, `reason="a newer session of this proxy`},
		"it is wrong":    {func(a *agent) { a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{}}) }, `one Hello`},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			h, a := joined(t, nil)
			a.connect(false)
			tc.end(a)
			h.eventually("the log has "+tc.want, func() bool { return len(h.log.Lines("agent disconnected", tc.want)) > 0 })
		})
	}
}

func TestSessionsEndWithTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.connect(false)
		done := make(chan struct{})
		go func() {
			h.stop()
			close(done)
		}()
		wantStatus(t, a.ending(), codes.Unavailable, "")
		<-done
	})
}

func TestDrainIsConfirmedWhenTheViewHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var old atomic.Pointer[meshview.View] // held back while set
		h, a := joined(t, func(o *agents.Options) {
			newest := o.View
			o.View = func() *meshview.View {
				if v := old.Load(); v != nil {
					return v
				}
				return newest()
			}
		})
		a.connect(false)
		old.Store(h.builder.View())
		a.send(draining())
		h.eventually("the builder has the drain", func() bool { return isDraining(h) })
		if _, err := h.state.Read("draining/default/web-1"); err != nil {
			t.Errorf("the builder got the drain before it was recorded: %v", err)
		}
		a.wantNothing("the view in effect does not have the drain")
		old.Store(nil)
		if m := a.receive(); m.GetDrainRecorded() == nil {
			t.Fatalf("got %v, want DrainRecorded", m)
		}
	})
}

func isDraining(h *harness) bool {
	_, p := h.builder.View().Proxy("default/web-1")
	return p != nil && p.Observed.Draining
}

func TestDrainLastsUntilTheNextHelloWithoutIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.connect(false)
		a.send(draining())
		a.receive()
		a.leave()

		h.restart()
		h.fill("web-1")
		if !isDraining(h) {
			t.Fatal("the first view after a restart does not have the drain")
		}
		a.connect(true)
		if m := a.receive(); m.GetDrainRecorded() == nil {
			t.Fatalf("Hello with draining got %v, want DrainRecorded", m)
		}
		a.leave()
		if !isDraining(h) {
			t.Fatal("the drain is gone with the session")
		}
		a.connect(false)
		h.eventually("the drain is over", func() bool { return !isDraining(h) })
		a.leave()
		h.restart()
		h.fill("web-1")
		if isDraining(h) {
			t.Error("the drain is back after a restart")
		}
	})
}

func TestDrainOfAProxyThatIsGoneIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.connect(true)
		a.receive()
		a.leave()
		h.delete("web-1")
		if names, err := h.state.List("draining/default"); err != nil || len(names) != 1 {
			t.Fatalf("draining = %v, %v, want a drain while the certificate is valid", names, err)
		}
		h.ahead.Store(int64(25 * time.Hour))
		h.eventually("the file is gone", func() bool {
			names, err := h.state.List("draining/default")
			return err == nil && len(names) == 0
		})
		h.eventually("the record is gone", func() bool {
			names, err := h.state.List("meshes/default/proxies")
			return err == nil && len(names) == 0
		})
	})
}
