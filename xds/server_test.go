package xds

import (
	"bytes"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/xds/resource"
)

func TestStreamErrors(t *testing.T) {
	manyNames := make([]string, maxNames+1)
	for i := range manyNames {
		manyNames[i] = fmt.Sprint("n", i)
	}
	tests := map[string]struct {
		requests []*discoveryv3.DeltaDiscoveryRequest
		code     codes.Code
		text     string
	}{
		"no request":         {nil, codes.DeadlineExceeded, "no request within"},
		"no node":            {[]*discoveryv3.DeltaDiscoveryRequest{ask("", "CDS")}, codes.InvalidArgument, "must have node.id"},
		"a long node":        {[]*discoveryv3.DeltaDiscoveryRequest{ask(strings.Repeat("x", 2000), "CDS")}, codes.ResourceExhausted, "node.id: 2000 bytes: at most 1024"},
		"another's node":     {[]*discoveryv3.DeltaDiscoveryRequest{ask("stranger", "CDS")}, codes.PermissionDenied, "certificate belongs to another"},
		"status of the peer": {[]*discoveryv3.DeltaDiscoveryRequest{ask("expired", "CDS")}, codes.Unauthenticated, "has expired"},
		"node changes":       {[]*discoveryv3.DeltaDiscoveryRequest{ask("m/a", "CDS"), ask("m/b", "EDS")}, codes.PermissionDenied, `cannot become node "m/b"`},
		"no type":            {[]*discoveryv3.DeltaDiscoveryRequest{{Node: nodeOf("m/a")}}, codes.InvalidArgument, "type_url is missing; served are"},
		"long name":          {[]*discoveryv3.DeltaDiscoveryRequest{ask("m/a", "EDS", strings.Repeat("x", 2000))}, codes.ResourceExhausted, "resource_names_subscribe: 2000 bytes: at most 1024 are allowed"},
		"many names":         {[]*discoveryv3.DeltaDiscoveryRequest{ask("m/a", "EDS", manyNames...)}, codes.ResourceExhausted, "resource_names_subscribe: more than 20000 names"},
		"many names in two": {
			[]*discoveryv3.DeltaDiscoveryRequest{ask("m/a", "EDS", manyNames[:maxNames]...), ask("m/a", "EDS", manyNames[maxNames:]...)},
			codes.ResourceExhausted, "subscribed to 20001 names",
		},
		"large message": {[]*discoveryv3.DeltaDiscoveryRequest{ask("m/a", "EDS", strings.Repeat("x", maxMessageSize))}, codes.ResourceExhausted, "larger than max"},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			f := newFixture(t, Options{})
			p := f.delta().listen()
			if tc.requests == nil {
				time.Sleep(firstMessageTimeout - 1)
				p.quiet()
				time.Sleep(time.Nanosecond)
			}
			for _, r := range tc.requests {
				p.send(r)
			}
			p.endsWith(tc.code, tc.text)
			f.settles("the stream is gone", func() bool { return f.metric("sonde_xds_streams") == 0 })
		})
	}
}

func TestNewestStreamsOfANodeStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Options{})
		f.want("m/a", "CDS x@1")
		streams := make([]*fakeProxy[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse], streamsPerNode+1)
		for i := range streams {
			streams[i] = f.delta().listen()
			streams[i].send(ask("m/a", "CDS"))
			streams[i].next()
		}
		streams[0].endsWith(codes.Aborted, `node "m/a" has opened 3 newer streams`)
		streams[1].quiet()
		expect(t, len(f.server.Status()), streamsPerNode)
		expect(t, strings.Count(f.source.called(), "detach"), 1)
		for _, p := range streams[1:] {
			p.end()
		}
		f.settles("all are gone", func() bool { return len(f.server.Status()) == 0 })
		expect(t, strings.Count(f.source.called(), "attach m/a, "), 4)
		expect(t, strings.Count(f.source.called(), "detach m/a"), 4)
	})
}

// busySource records whether a call overlaps with another one.
type busySource struct {
	running, attached atomic.Int64
	overlapped        atomic.Bool
}

func (b *busySource) Attach(string, resource.Metadata) resource.Desired {
	b.call(1)
	return resource.Desired{}
}

func (b *busySource) Detach(string) { b.call(-1) }

func (b *busySource) call(streams int64) {
	if b.running.Add(1) > 1 {
		b.overlapped.Store(true)
	}
	for range 100 {
		runtime.Gosched() // gives other goroutines a chance to overlap
	}
	b.attached.Add(streams)
	b.running.Add(-1)
}

func TestSourceIsAskedOneAtATimeForANode(t *testing.T) {
	t.Parallel()
	source := &busySource{}
	s := NewServer(Options{}, source, nil)
	var streams sync.WaitGroup
	for range 20 {
		streams.Go(func() {
			st := newStream(s, nodeOf("m/a"), false, nil)
			st.authorize = func() error { return nil }
			if err := s.attach("m/a", st); err != nil {
				t.Error(err)
			}
			s.detach("m/a", st)
		})
	}
	streams.Wait()
	expect(t, source.overlapped.Load(), false)
	expect(t, source.attached.Load(), 0)
	expect(t, len(s.nodes), 0)
}

func TestWhatIsPublishedWhileAttachingIsNewer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Options{})
		f.source.desired["m/a"] = resource.Desired{Shared: setOf(t, "CDS x@1", nil)}
		f.source.attach = func(id string) { // the source has already read version 1
			f.server.Publish(map[string]resource.Desired{id: {Shared: setOf(t, "CDS x@2", nil)}})
		}
		p := f.delta().listen()
		p.send(ask("m/a", "CDS"))
		expect(t, said(p.next()), "CDS x@2")
		p.quiet()
	})
}

func TestNACKIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Options{})
		f.want("m/a", "LDS l@1 m@1")
		p := f.delta().listen()
		p.send(ask("m/a", "LDS"))
		r := p.next()
		p.send(ack(r, "Error adding/updating listener(s) m: cannot bind '127.0.0.1:1': Address already in use"))
		r = p.next()
		expect(t, said(r), "LDS l@1")
		p.send(ack(r, ""))
		f.settles("the ACK is noted", func() bool { return f.server.Status()[0].Types[0].Acked == r.GetNonce() })

		st := f.server.Status()[0]
		expect(t, st.Node, "m/a")
		expect(t, st.Delta && st.Known && !st.Late, true)
		listeners := st.Types[0]
		expect(t, len(listeners.NACKs), 1)
		n := listeners.NACKs[0]
		expect(t, n.Name+"@"+n.Version, "m@1")
		if !strings.Contains(n.Reason, "Address already in use") || n.At.IsZero() {
			t.Errorf("NACK = %+v", n)
		}
		expect(t, f.metric("sonde_xds_nacks_total"), 1)
		for _, word := range []string{"proxy refused a resource", "node=m/a", "type=listener", "resource=m", "resourceVersion=1", "Address already in use"} {
			if !strings.Contains(f.log.String(), word) {
				t.Errorf("log lacks %q:\n%s", word, f.log)
			}
		}
		expect(t, f.metric("sonde_xds_refused"), 1)
		f.want("m/a", "LDS l@1 m@2")
		expect(t, said(p.next()), "LDS m@2")
		f.settles("nothing is refused", func() bool { return f.metric("sonde_xds_refused") == 0 })
	})
}

func TestLateProxyIsReportedAndServedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Options{})
		f.want("m/a", "CDS x@1 EDS x@1")
		p := f.delta().listen()
		p.send(ask("m/a", "CDS"))
		p.next()
		time.Sleep(ackTimeout)
		f.settles("it is in time", func() bool { return f.metric("sonde_xds_streams_late") == 0 })
		time.Sleep(time.Nanosecond)
		f.settles("it is late", func() bool { return f.metric("sonde_xds_streams_late") == 1 })
		if st := f.server.Status()[0]; !st.Late || st.Types[0].Unanswered.IsZero() {
			t.Errorf("Status() = %+v", st)
		}
		p.send(ask("", "EDS", "x"))
		expect(t, said(p.next()), "EDS x@1")
	})
}

// big has one cluster that exceeds the buffers of an unread connection.
func big(version int) resource.Desired {
	body := append(fmt.Appendf(nil, "x@%d ", version), bytes.Repeat([]byte("x"), 1<<20)...)
	return resource.Desired{Shared: resource.NewSet(resource.New(resource.Cluster, "x", strconv.Itoa(version), body))}
}

// TestAClientThatStopsReading has a client that opens a stream and reads nothing, while another client gets each
// change.
func TestAClientThatStopsReading(t *testing.T) {
	virtual.Run(t, "delta", func(t *testing.T) {
		f := newFixture(t, Options{})
		stopReading(f, f.delta(), ask("m/deaf", "CDS"), said, func(r *discoveryv3.DeltaDiscoveryResponse) *discoveryv3.DeltaDiscoveryRequest { return ack(r, "") }, 1, 2, changes)
	})
	virtual.Run(t, "state of the world", func(t *testing.T) {
		f := newFixture(t, Options{})
		stopReading(f, f.sotw(), &discoveryv3.DiscoveryRequest{Node: nodeOf("m/deaf"), TypeUrl: string(resource.Cluster)}, saidSotw, func(r *discoveryv3.DiscoveryResponse) *discoveryv3.DiscoveryRequest {
			return &discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}
		}, 1, changes)
	})
}

// changes is the number of changes while a client does not read.
const changes = 200

// stopReading checks which versions a client gets that has stopped reading: those that gRPC has accepted, with delta
// the one that was being sent, and the newest.
func stopReading[Req, Resp any](f *fixture, deaf *fakeProxy[Req, Resp], hello *Req, text func(*Resp) string, answer func(*Resp) *Req, versions ...int) {
	f.t.Helper()
	other := f.delta().listen()
	deaf.send(hello)
	other.send(ask("m/other", "CDS"))
	f.settles("both are there", func() bool { return len(f.server.Status()) == 2 })
	for i := 1; i <= changes; i++ {
		f.server.Publish(map[string]resource.Desired{"m/deaf": big(i), "m/other": {Shared: setOf(f.t, fmt.Sprint("CDS x@", i), nil)}})
		r := other.next()
		expect(f.t, said(r), fmt.Sprint("CDS x@", i))
		other.send(ack(r, ""))
	}
	// The stream keeps what gRPC has accepted, what is being sent, and the newest state, but no versions in between.
	for _, st := range f.server.Status() {
		if st.Node == "m/deaf" && (st.Types[0].Pending > 1 || st.Types[0].Sent > "2") {
			f.t.Errorf("Status() = %+v", st)
		}
	}
	deaf.listen()
	for _, version := range versions {
		r := deaf.next()
		expect(f.t, text(r), fmt.Sprint("CDS x@", version))
		deaf.send(answer(r))
	}
	deaf.quiet()
}

func TestAClientThatNeverReadsIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Options{})
		f.source.desired["m/deaf"] = big(1)
		deaf := f.delta()
		deaf.send(ask("m/deaf", "CDS"))
		f.settles("gRPC has taken the first", func() bool {
			all := f.server.Status()
			return len(all) > 0 && len(all[0].Types) > 0 && all[0].Types[0].Sent == "1"
		})
		f.server.Publish(map[string]resource.Desired{"m/deaf": big(2)})
		time.Sleep(sendTimeout - 1)
		f.settles("the stream goes on", func() bool { return len(f.server.Status()) == 1 })
		time.Sleep(time.Nanosecond)
		f.settles("the stream is ended", func() bool {
			return len(f.server.Status()) == 0 && strings.Contains(f.log.String(), "has not read for")
		})
	})
}

func TestManyProxiesFollowOneChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Options{})
		var proxies []*fakeProxy[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]
		all := map[string]resource.Desired{}
		one := resource.Desired{Shared: setOf(t, "CDS x@1", nil)}
		for i := range 50 {
			id := fmt.Sprint("m/", i)
			f.source.desired[id], all[id] = one, resource.Desired{Shared: one.Shared.With([]*resource.Resource{res(resource.Cluster, "x@2")}, nil)}
			p := f.delta().listen()
			p.send(ask(id, "CDS"))
			expect(t, said(p.next()), "CDS x@1")
			proxies = append(proxies, p)
		}
		f.server.Publish(all)
		for _, p := range proxies {
			expect(t, said(p.next()), "CDS x@2")
		}
	})
}

// TestRefusedStreamsAreLoggedWithTheirPeer checks that the log has the peer's address: a caller may claim any node, but
// has only its own addresses.
func TestRefusedStreamsAreLoggedWithTheirPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Options{})
		p := f.delta().listen()
		p.send(ask("stranger", "CDS"))
		p.endsWith(codes.PermissionDenied, "certificate belongs to another")
		if log := f.log.String(); !strings.Contains(log, `msg="stream rejected" node=stranger peer=bufconn`) {
			t.Errorf("log = %s", log)
		}
	})
}

func TestWhatWasSentIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Options{})
		f.want("m/a", "CDS x@1 y@1")
		p := f.sotw().listen()
		p.send(&discoveryv3.DiscoveryRequest{Node: nodeOf("m/a"), TypeUrl: string(resource.Cluster)})
		expect(t, saidSotw(p.next()), "CDS x@1 y@1")
		f.settles("the list is dropped, and the response waits for its ACK", func() bool {
			st := f.server.all()[0]
			st.mu.Lock()
			defer st.mu.Unlock()
			inFlight := st.proxy.subscription(resource.Cluster).inFlight
			return len(inFlight) == 1 && inFlight[0].full == nil
		})
	})
}
