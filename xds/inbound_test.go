package xds

import (
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// inboundReports collects what Options.Inbound is told, as text.
type inboundReports struct {
	mu  sync.Mutex
	all []string
}

func (r *inboundReports) add(node string, s InboundStatus) {
	words := []string{node}
	for _, at := range s.Accepted {
		words = append(words, at.String())
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

// inboundListeners makes a set of listeners from name@version; those named in… are for inbound traffic.
func inboundListeners(texts ...string) *resource.Set {
	var list []*resource.Resource
	for _, text := range texts {
		r := res(resource.Listener, text)
		if port, ok := strings.CutPrefix(r.Name, "in"); ok {
			r.Inbound = netip.MustParseAddrPort("10.0.0.1:" + port)
		}
		list = append(list, r)
	}
	return resource.NewSet(list...)
}

func TestInboundStatusIsReported(t *testing.T) {
	t.Parallel()
	reports := &inboundReports{}
	f := newFixture(t, Options{Inbound: reports.add})
	publish := func(listeners ...string) {
		d := resource.Desired{Own: inboundListeners(listeners...)}
		f.source.mu.Lock()
		f.source.desired["m/a"] = d
		f.source.mu.Unlock()
		f.server.Publish(map[string]resource.Desired{"m/a": d})
	}
	want := func(lines ...string) {
		t.Helper()
		f.until("reports", func() bool { return len(reports.list()) >= len(lines) })
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
	f.until("the end of the stream", func() bool { return len(f.server.Status()) == 0 })
	again := f.delta().listen()
	hello := ask("m/a", "LDS")
	hello.InitialResourceVersions = map[string]string{"in90": "2"}
	again.send(hello)
	lines = append(lines, "m/a 10.0.0.1:90")
	want(lines...)
	again.send(ack(again.next(), ""))
	lines = append(lines, "m/a 10.0.0.1:80 10.0.0.1:90")
	want(lines...)
}

// TestInboundStatusOfTwoStreams has a second agent of the same name, whose Envoy cannot listen.
func TestInboundStatusOfTwoStreams(t *testing.T) {
	t.Parallel()
	reports := &inboundReports{}
	f := newFixture(t, Options{Inbound: reports.add})
	f.source.desired["m/a"] = resource.Desired{Own: inboundListeners("in80@1")}
	reported := func(what string) {
		t.Helper()
		f.until(what, func() bool {
			all := reports.list()
			return len(all) > 0 && all[len(all)-1] == what
		})
	}
	p := f.delta().listen()
	p.send(ask("m/a", "LDS"))
	p.send(ack(p.next(), ""))
	reported("m/a 10.0.0.1:80")

	onlyClusters := f.delta().listen() // says nothing of listeners
	onlyClusters.send(ask("m/a", "CDS"))
	onlyClusters.next()
	q := f.delta().listen()
	q.send(ask("m/a", "LDS"))
	q.send(ack(q.next(), "no such filter"))
	f.until("the refusal", func() bool { return f.metric("sonde_xds_nacks_total") == 1 })
	reported("m/a 10.0.0.1:80")
	p.end()
	reported("m/a refused in80: no such filter")
}

// TestInboundStatusBeforeTheFirstView has a proxy that names what it has before the server knows what it should have.
func TestInboundStatusBeforeTheFirstView(t *testing.T) {
	t.Parallel()
	reports := &inboundReports{}
	f := newFixture(t, Options{Inbound: reports.add})
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
	f.until("a report", func() bool { return len(reports.list()) > 0 })
	if diff := cmp.Diff([]string{"m/a 10.0.0.1:80"}, reports.list()); diff != "" {
		t.Errorf("reports (-want +got):\n%s", diff)
	}
}

// TestInboundStatusOfOtherNames has a proxy that subscribes to other listeners by name.
func TestInboundStatusOfOtherNames(t *testing.T) {
	t.Parallel()
	reports := &inboundReports{}
	f := newFixture(t, Options{Inbound: reports.add})
	f.source.desired["m/a"] = resource.Desired{Own: inboundListeners("in80@1", "other@1")}
	p := f.delta().listen()
	p.send(ask("m/a", "LDS", "other"))
	p.send(ack(p.next(), ""))
	p.send(ask("", "LDS", "in80"))
	p.send(ack(p.next(), ""))
	f.until("two reports", func() bool { return len(reports.list()) == 2 })
	if diff := cmp.Diff([]string{"m/a", "m/a 10.0.0.1:80"}, reports.list()); diff != "" {
		t.Errorf("reports (-want +got):\n%s", diff)
	}
}

func TestStateOfTheWorldReportsNothingBeforeItAnswers(t *testing.T) {
	t.Parallel()
	reports := &inboundReports{}
	f := newFixture(t, Options{Inbound: reports.add})
	d := resource.Desired{Own: inboundListeners("in80@1")}
	f.source.desired["m/a"] = d
	p := f.sotw().listen()
	p.send(&discoveryv3.DiscoveryRequest{Node: nodeOf("m/a"), TypeUrl: string(resource.Listener)})
	r := p.next()
	p.send(&discoveryv3.DiscoveryRequest{TypeUrl: string(resource.Listener), ResponseNonce: r.GetNonce()})
	f.until("a report", func() bool { return len(reports.list()) > 0 })
	if diff := cmp.Diff([]string{"m/a 10.0.0.1:80"}, reports.list()); diff != "" {
		t.Errorf("reports (-want +got):\n%s", diff)
	}
}
