package xds

import (
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// inboundReports collects the calls of Options.Listeners, as text.
type inboundReports struct {
	mu  sync.Mutex
	all []string
}

func (r *inboundReports) add(node string, s ListenerStatus) {
	words := []string{node}
	for _, at := range s.Accepted {
		words = append(words, at.String())
	}
	for _, at := range s.Outbounds {
		words = append(words, "outbound "+at.String())
	}
	for _, n := range s.Refused {
		words = append(words, "refused "+n.Name+": "+n.Reason)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, strings.Join(words, " "))
}

func (r *inboundReports) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.all...)
}

// inboundListeners makes a set of listeners from name@version. Names in… are for inbound traffic, names bound… for
// outbound.
func inboundListeners(texts ...string) *resource.Set {
	var list []*resource.Resource
	for _, text := range texts {
		r := res(resource.Listener, text)
		if port, ok := strings.CutPrefix(r.Name, "in"); ok {
			r.Inbound = netip.MustParseAddrPort("10.0.0.1:" + port)
		}
		if port, ok := strings.CutPrefix(r.Name, "bound"); ok {
			r.Outbound = netip.MustParseAddrPort("127.0.0.1:" + port)
		}
		list = append(list, r)
	}
	return resource.NewSet(list...)
}

func TestListenerStatusIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := &inboundReports{}
		f := newFixture(t, Options{Listeners: reports.add})
		publish := func(listeners ...string) {
			d := resource.Desired{Own: inboundListeners(listeners...)}
			f.source.mu.Lock()
			f.source.desired["m/a"] = d
			f.source.mu.Unlock()
			f.server.Publish(map[string]resource.Desired{"m/a": d})
		}
		want := func(lines ...string) {
			t.Helper()
			f.settles("reports", func() bool { return len(reports.list()) >= len(lines) })
			if diff := cmp.Diff(lines, reports.list()); diff != "" {
				t.Fatalf("reports (-want +got):\n%s", diff)
			}
		}
		publish("in80@1", "out1@1")
		p := f.delta().listen()
		p.send(ask("m/a", "LDS"))
		first := p.next()
		lines := []string{"m/a"}
		want(lines...)
		p.send(ack(first, ""))
		lines = append(lines, "m/a 10.0.0.1:80")
		want(lines...)

		publish("in80@2", "in90@1", "out1@1")
		r := p.next()
		p.send(ack(r, "Error adding/updating listener(s) in80: no filter\nin90: no filter"))
		lines = append(lines, "m/a 10.0.0.1:80 refused in90: no filter")
		want(lines...)

		publish("in80@1", "in90@2", "out1@1")
		p.send(ack(p.next(), ""))
		lines = append(lines, "m/a 10.0.0.1:80 10.0.0.1:90")
		want(lines...)

		p.end()
		f.settles("the end of the stream", func() bool { return len(f.server.Status()) == 0 })
		again := f.delta().listen()
		hello := ask("m/a", "LDS")
		hello.InitialResourceVersions = map[string]string{"in90": "2"}
		again.send(hello)
		lines = append(lines, "m/a 10.0.0.1:90")
		want(lines...)
		again.send(ack(again.next(), ""))
		lines = append(lines, "m/a 10.0.0.1:80 10.0.0.1:90")
		want(lines...)
	})
}

// TestListenerStatusOfOutbounds has another program at one of two outbounds, which must not affect the inbound.
func TestListenerStatusOfOutbounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := &inboundReports{}
		f := newFixture(t, Options{Listeners: reports.add})
		f.source.desired["m/a"] = resource.Desired{Own: inboundListeners("in80@1", "bound81@1", "bound82@1", "out1@1")}
		p := f.delta().listen()
		p.send(ask("m/a", "LDS"))
		p.send(ack(p.next(), "Error adding/updating listener(s) bound82: cannot bind"))
		p.send(ack(p.next(), "")) // the good listeners again
		f.settles("the reports", func() bool { return len(reports.list()) > 2 })
		want := "m/a 10.0.0.1:80 outbound 127.0.0.1:81 refused bound82: cannot bind"
		if all := reports.list(); all[len(all)-1] != want {
			t.Errorf("reports are %q, want %q as the last", all, want)
		}
	})
}

// TestListenerStatusOfTwoStreams has a second agent with the same name, whose Envoy cannot bind.
func TestListenerStatusOfTwoStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := &inboundReports{}
		f := newFixture(t, Options{Listeners: reports.add})
		f.source.desired["m/a"] = resource.Desired{Own: inboundListeners("in80@1")}
		reported := func(what string) {
			t.Helper()
			f.settles(what, func() bool {
				all := reports.list()
				return len(all) > 0 && all[len(all)-1] == what
			})
		}
		p := f.delta().listen()
		p.send(ask("m/a", "LDS"))
		p.send(ack(p.next(), ""))
		reported("m/a 10.0.0.1:80")

		onlyClusters := f.delta().listen() // requests no listeners
		onlyClusters.send(ask("m/a", "CDS"))
		onlyClusters.next()
		q := f.delta().listen()
		q.send(ask("m/a", "LDS"))
		q.send(ack(q.next(), "no such filter"))
		f.settles("the refusal", func() bool { return f.metric("sonde_xds_nacks_total") == 1 })
		reported("m/a 10.0.0.1:80")
		p.end()
		reported("m/a refused in80: no such filter")
	})
}

// TestListenerStatusBeforeTheFirstView has a proxy that reports its resources before the server knows the desired ones.
func TestListenerStatusBeforeTheFirstView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := &inboundReports{}
		f := newFixture(t, Options{Listeners: reports.add})
		p := f.delta().listen()
		hello := ask("m/a", "LDS")
		hello.InitialResourceVersions = map[string]string{"in80": "1"}
		p.send(hello)
		p.quiet()
		d := resource.Desired{Own: inboundListeners("in80@1")}
		f.source.mu.Lock()
		f.source.desired["m/a"] = d
		f.source.mu.Unlock()
		f.server.Publish(map[string]resource.Desired{"m/a": d})
		f.settles("a report", func() bool { return len(reports.list()) > 0 })
		if diff := cmp.Diff([]string{"m/a 10.0.0.1:80"}, reports.list()); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
	})
}

// TestListenerStatusOfOtherNames has a proxy that subscribes to other listeners by name.
func TestListenerStatusOfOtherNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := &inboundReports{}
		f := newFixture(t, Options{Listeners: reports.add})
		f.source.desired["m/a"] = resource.Desired{Own: inboundListeners("in80@1", "other@1")}
		p := f.delta().listen()
		p.send(ask("m/a", "LDS", "other"))
		p.send(ack(p.next(), ""))
		p.send(ask("", "LDS", "in80"))
		p.send(ack(p.next(), ""))
		f.settles("two reports", func() bool { return len(reports.list()) == 2 })
		if diff := cmp.Diff([]string{"m/a", "m/a 10.0.0.1:80"}, reports.list()); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
	})
}

func TestStateOfTheWorldReportsNothingBeforeItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := &inboundReports{}
		f := newFixture(t, Options{Listeners: reports.add})
		d := resource.Desired{Own: inboundListeners("in80@1")}
		f.source.desired["m/a"] = d
		p := f.sotw().listen()
		p.send(&discoveryv3.DiscoveryRequest{Node: nodeOf("m/a"), TypeUrl: string(resource.Listener)})
		r := p.next()
		p.send(&discoveryv3.DiscoveryRequest{TypeUrl: string(resource.Listener), ResponseNonce: r.GetNonce()})
		f.settles("a report", func() bool { return len(reports.list()) > 0 })
		if diff := cmp.Diff([]string{"m/a 10.0.0.1:80"}, reports.list()); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
	})
}
