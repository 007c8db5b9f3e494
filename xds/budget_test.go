package xds

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// padded returns n names, each of length bytes.
func padded(prefix string, n, length int) []string {
	names := make([]string, n)
	for i := range names {
		name := fmt.Sprint(prefix, i)
		names[i] = name + strings.Repeat("n", length-len(name))
	}
	return names
}

// fits is the maximum number of names of 1000 bytes for one proxy.
const fits = maxNameBytes / (1000 + nameOverhead)

func TestNamesOfAStreamHaveABudget(t *testing.T) {
	few, many := padded("a", 3500, 1000), padded("b", fits-3499, 1000)
	virtual.Run(t, "delta", func(t *testing.T) {
		f := newFixture(t, Options{})
		p := f.delta().listen()
		p.send(ask("m/a", "EDS", few...))
		p.send(ask("", "EDS", many[1:]...))
		f.settles("both are handled", func() bool { return f.metric("sonde_xds_requests_total") == 2 })
		p.quiet()
		p.send(ask("", "RDS", many[0]))
		p.endsWith(codes.ResourceExhausted, fmt.Sprintf("resource names: %d bytes with 192 for each name: at most 8388608 are allowed", (fits+1)*1192))
	})
	virtual.Run(t, "versions of nonexistent names", func(t *testing.T) {
		f := newFixture(t, Options{})
		f.want("m/a", "CDS x@1")
		p := f.delta().listen()
		for n, kind := range []string{"CDS", "LDS"} {
			r := ask("m/a", kind)
			r.InitialResourceVersions = map[string]string{}
			for _, name := range [][]string{few, many}[n] {
				r.InitialResourceVersions[name] = "1"
			}
			p.send(r)
		}
		p.endsWith(codes.ResourceExhausted, "resource names")
	})
	virtual.Run(t, "types that are not served", func(t *testing.T) {
		f := newFixture(t, Options{}) // m/a is unknown, so it waits for its responses
		p := f.delta().listen()
		for n, list := range [][]string{few, many} {
			r := ask("m/a", "EDS", list...)
			r.TypeUrl = fmt.Sprint("type-", n)
			p.send(r)
		}
		p.endsWith(codes.ResourceExhausted, "resource names")
	})
	virtual.Run(t, "state of the world", func(t *testing.T) {
		f := newFixture(t, Options{})
		p := f.sotw().listen()
		request := func(kind resource.Type, names []string) *discoveryv3.DiscoveryRequest {
			return &discoveryv3.DiscoveryRequest{Node: nodeOf("m/a"), TypeUrl: string(kind), ResourceNames: names}
		}
		p.send(request(resource.Endpoint, few))
		p.send(request(resource.Endpoint, many)) // replaces the other names
		p.send(request(resource.Route, few[1:]))
		f.settles("all are handled", func() bool { return f.metric("sonde_xds_requests_total") == 3 })
		p.quiet()
		p.send(request(resource.Route, few))
		p.endsWith(codes.ResourceExhausted, "resource names")
	})
}

// TestNamesOfAllStreamsOfANode opens a second stream whose names do not fit beside the first stream's names. The first
// stream may be half-open.
func TestNamesOfAllStreamsOfANode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Options{})
		first, second, other := f.delta().listen(), f.delta().listen(), f.delta().listen()
		first.send(ask("m/a", "EDS", padded("a", 3500, 1000)...))
		other.send(ask("m/b", "EDS", padded("b", 3500, 1000)...))
		f.settles("both are handled", func() bool { return f.metric("sonde_xds_requests_total") == 2 })
		second.send(ask("m/a", "EDS", padded("c", 3500, 1000)...))
		second.send(ask("", "EDS", padded("d", 100, 1000)...))
		first.endsWith(codes.ResourceExhausted, `all streams of node "m/a": more than 8388608 bytes`)
		second.quiet()
		other.quiet()
	})
}

// TestUnansweredResponsesHaveABudget requests names repeatedly, and ACKs nothing.
func TestUnansweredResponsesHaveABudget(t *testing.T) {
	t.Parallel()
	names := padded("a", 2000, 500)
	for protocol, request := range map[string]func(p *proxy, kind resource.Type, nonce string) error{
		"delta": func(p *proxy, kind resource.Type, nonce string) error {
			_, err := p.receiveDelta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: string(kind), ResourceNamesSubscribe: names, ResponseNonce: nonce})
			return err
		},
		"sotw": func(p *proxy, kind resource.Type, nonce string) error {
			_, err := p.receiveSotw(&discoveryv3.DiscoveryRequest{TypeUrl: string(kind), ResourceNames: names, ResponseNonce: nonce})
			return err
		},
	} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			p := newProxy(protocol == "sotw")
			p.setDesired(resource.Desired{Shared: setOf(t, "CDS x@1", nil)})
			one := len(names) * (500 + mentionBytes)
			for range 50 {
				for _, kind := range resource.Types() {
					if err := request(p, kind, ""); err != nil {
						t.Fatal(err)
					}
					for p.next() != nil {
					}
				}
			}
			if got, most := p.inFlightBytes, maxInFlightBytes+len(resource.Types())*one; got > most {
				t.Errorf("%d bytes wait for an ACK, want at most %d", got, most)
			}
			for answered := true; answered; {
				answered = false
				for _, s := range p.subscriptions {
					if len(s.inFlight) > 0 {
						answered = true
						p.handleAck(s, s.inFlight[len(s.inFlight)-1].nonce, nil)
					}
					for p.next() != nil {
					}
				}
			}
			if p.inFlightBytes != 0 {
				t.Errorf("%d bytes are counted when everything is ACKed", p.inFlightBytes)
			}
		})
	}
}

// TestAnAnswerCountsForThoseBefore answers only the last of several responses, which also frees the budget of the
// earlier ones.
func TestAnAnswerCountsForThoseBefore(t *testing.T) {
	p := newProxy(false)
	p.setDesired(resource.Desired{Shared: setOf(t, "CDS a@1 b@1 c@1", nil)})
	for _, name := range []string{"a", "b", "c"} {
		if _, err := p.receiveDelta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: string(resource.Cluster), ResourceNamesSubscribe: []string{name}}); err != nil {
			t.Fatal(err)
		}
		for p.next() != nil {
		}
	}
	s := p.subscription(resource.Cluster)
	if len(s.inFlight) < 2 || p.inFlightBytes == 0 {
		t.Fatalf("%d responses of %d bytes are in flight, want several", len(s.inFlight), p.inFlightBytes)
	}
	p.handleAck(s, s.inFlight[len(s.inFlight)-1].nonce, nil)
	if p.inFlightBytes != 0 {
		t.Errorf("%d bytes are counted when the last is ACKed", p.inFlightBytes)
	}
}

// TestWork checks the work that requests cause.
func TestWork(t *testing.T) {
	t.Parallel()
	request := func(nonce, nack string, names ...string) *discoveryv3.DeltaDiscoveryRequest {
		r := ask("", "CDS", names...)
		r.ResponseNonce = nonce
		if nack != "" {
			r.ErrorDetail = &statuspb.Status{Message: nack}
		}
		return r
	}
	tests := map[string]struct {
		request *discoveryv3.DeltaDiscoveryRequest
		want    int
	}{
		"an ACK":                          {request("1", ""), 0},
		"an ACK with a name":              {request("1", "", "a"), 0},
		"an ACK with many names":          {request("1", "", padded("a", 100, 10)...), requestWork + 200/namesPerWork},
		"an ACK of nothing":               {request("9", ""), requestWork},
		"a NACK of nothing":               {request("9", "no"), requestWork},
		"a NACK":                          {request("1", "no"), requestWork + nackWork + 200/namesPerWork},
		"names":                           {request("", "", padded("a", 100, 10)...), requestWork + 200/namesPerWork},
		"everything again":                {request("", "", "*"), requestWork + 200/namesPerWork},
		"everything again, with its ACK":  {request("1", "", "*"), requestWork + 200/namesPerWork},
		"names that it does not have end": {&discoveryv3.DeltaDiscoveryRequest{TypeUrl: string(resource.Cluster), ResourceNamesUnsubscribe: padded("a", 100, 10)}, requestWork + 100/namesPerWork},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(false)
			set, _ := services(200)
			p.setDesired(resource.Desired{Shared: set})
			if _, err := p.receiveDelta(ask("", "CDS")); err != nil {
				t.Fatal(err)
			}
			p.next()
			if got, want := p.takeWork(), requestWork+200/namesPerWork; got != want {
				t.Errorf("work of the first request = %d, want %d", got, want)
			}
			if _, err := p.receiveDelta(tc.request); err != nil {
				t.Fatal(err)
			}
			if got := p.takeWork(); got != tc.want {
				t.Errorf("work = %d, want %d", got, tc.want)
			}
		})
	}
}

// TestPace has one node send requests as fast as it can, on two streams.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(Options{}, &fakeSource{}, func(context.Context, string) error { return nil })
		start := time.Now()
		for range 2 {
			pace, err := s.admitAtPace(t.Context(), "m/a")
			if err != nil {
				t.Fatal(err)
			}
			st := &stream{pace: pace}
			for range 10 {
				st.charge(t.Context(), workBurst/2-streamWork/10)
			}
		}
		if took, want := time.Since(start).Round(time.Millisecond), 9*workBurst/workRate*time.Second; took != want {
			t.Errorf("ten times the burst took %s, want %s", took, want)
		}
		s.paceOf("m/a").ReserveN(time.Now(), 2*workRate)
		if _, err := s.admitAtPace(t.Context(), "m/a"); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "may begin in 2.025s") {
			t.Errorf("a stream after work for two seconds: %v, want ResourceExhausted with the time", err)
		}
		if _, err := s.admitAtPace(t.Context(), "m/b"); err != nil {
			t.Errorf("a stream of another node: %v", err)
		}
		wait(t.Context(), 2*time.Second)
		if _, err := s.admitAtPace(t.Context(), "m/a"); err != nil {
			t.Errorf("a stream when the work is done: %v", err)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		(&stream{pace: s.paceOf("m/a")}).charge(ended, workBurst)
	})
}

// TestPacesAreForgotten opens streams of many nodes, and checks that their paces are dropped.
func TestPacesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(Options{}, &fakeSource{}, nil)
		busy := s.paceOf("m/busy")
		busy.ReserveN(time.Now(), workBurst)
		for i := range 1000 {
			s.paceOf(fmt.Sprint("m/", i))
		}
		if len(s.paces) > 200 || s.paceOf("m/busy") != busy {
			t.Errorf("%d paces are kept, want the busy node's and at most 200", len(s.paces))
		}
	})
}
