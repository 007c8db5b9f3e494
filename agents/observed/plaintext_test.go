package observed_test

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sonde-mesh/sonde/agents/observed"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/testing/agentstest"
)

// counted returns a report with that many requests from each of these sources, the last one a minute ago.
func counted(count uint64, sources ...string) *agentv1.Plaintext {
	in := &agentv1.PlaintextInbound{Port: 8080, Requests: true}
	for _, from := range sources {
		in.Sources = append(in.Sources, &agentv1.PlaintextSource{Address: from, Tally: &agentv1.PlaintextTally{
			Count: count, Open: 1, First: durationpb.New(time.Hour), Last: durationpb.New(time.Minute),
		}})
	}
	return &agentv1.Plaintext{Inbounds: []*agentv1.PlaintextInbound{in}}
}

// report reports m in the proxy's session of that number.
func report(s *observed.State, who identity.Subject, session int64, process string, m *agentv1.Plaintext) {
	s.Plaintext(who, facts.Order{Time: session}, process, m)
}

// summary returns the counts of a mesh: a line per source of a proxy, or of a workload without proxies.
func summary(s *observed.State) []string {
	proxies, past, _ := s.PlaintextOf("default")
	lines := []string{}
	for id, of := range proxies {
		for _, p := range of.Ports {
			for from, t := range p.Sources {
				lines = append(lines, fmt.Sprintf("%s %s %d: %s %d+%d", id, of.Workload, p.Port, from, t.Count, t.Open))
			}
		}
	}
	for _, p := range past {
		for from, t := range p.Sources {
			lines = append(lines, fmt.Sprintf("past %s %d: %s %d+%d", p.Workload, p.Port, from, t.Count, t.Open))
		}
	}
	return lines
}

func dataplaneOf(who identity.Subject) *mesh.Dataplane {
	d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: who.Mesh, Name: who.Dataplane}, Identity: mesh.Identity{Path: who.Path, Instance: who.Instance}}
	d.Spec.Networking.Address = "10.0.0.2"
	d.SetDefaults()
	return d
}

// planeWith returns a plane whose view has db0.
func planeWith(t *testing.T) *agentstest.Plane {
	t.Helper()
	plane := agentstest.New(t)
	plane.Builder.Set("test", dataplaneOf(db0))
	synctest.Wait()
	return plane
}

// TestPlaintextOfReplicas uses replicas whose clocks differ by an hour.
func TestPlaintextOfReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := startReplicas(t, planeWith(t))
		knows := func(r *replica, what string, want ...string) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff(append([]string{}, want...), summary(r.State)); diff != "" {
				t.Errorf("%s: PlaintextOf() (-want +got):\n%s", what, diff)
			}
		}
		report(a.State, db0, 1, "p1", counted(3, "10.0.0.7"))
		knows(a, "its agent says it", "default/db-0 /ns/shop/sa/db 8080: 10.0.0.7 3+1")
		knows(b, "the other replica says it", "default/db-0 /ns/shop/sa/db 8080: 10.0.0.7 3+1")
		for _, r := range []*replica{a, b} {
			proxies, _, since := r.PlaintextOf("default")
			is := func(at time.Time, ago time.Duration) bool { return at.Equal(r.now().Add(-ago)) }
			tally := proxies[db0.ID()].Ports[0].Sources[netip.MustParseAddr("10.0.0.7")]
			if !is(tally.First, time.Hour) || !is(tally.Last, time.Minute) || !is(since, 0) {
				t.Errorf("by this replica's clock first %s, last %s, and kept since %s", tally.First, tally.Last, since)
			}
		}
		report(b.State, db0, 2, "p1", counted(4, "10.0.0.7"))
		knows(a, "the session has moved", "default/db-0 /ns/shop/sa/db 8080: 10.0.0.7 4+1")
		b.stop()
		synctest.Wait()
		if a.peers.Heard(db0.ID())[0].Lost.IsZero() {
			t.Error("the replica is not lost")
		}
		knows(a, "what a lost replica has said", "default/db-0 /ns/shop/sa/db 8080: 10.0.0.7 4+1")
		report(a.State, db0, 3, "p1", counted(5, "10.0.0.7"))
		knows(a, "the same process counts on", "default/db-0 /ns/shop/sa/db 8080: 10.0.0.7 5+1")
	})
}

// TestPlaintextThatIsAskedFor has another replica answer for the agent of a proxy.
func TestPlaintextThatIsAskedFor(t *testing.T) {
	answer := func(session int64, instance string, said *agentv1.Plaintext) *peerv1.Proxy {
		return &peerv1.Proxy{Id: db0.ID(), Instance: instance, Plaintext: &peerv1.Plaintext{Order: facts.Order{Time: session}.Proto(), Process: "p1", Said: said}}
	}
	tests := map[string]struct {
		answer *peerv1.Proxy
		taken  bool
	}{
		"newer":                {answer(2, "1", counted(4, "10.0.0.7")), true},
		"of the same session":  {answer(1, "1", counted(4, "10.0.0.7")), true},
		"older":                {answer(0, "1", counted(4, "10.0.0.7")), false},
		"of a pod before":      {answer(2, "0", counted(4, "10.0.0.7")), false},
		"of a proxy that left": {&peerv1.Proxy{Id: "default/gone", Plaintext: &peerv1.Plaintext{}}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := lone(t, planeWith(t))
				report(s, db0, 1, "p1", counted(3, "10.0.0.7"))
				want := []string{fmt.Sprintf("default/db-0 /ns/shop/sa/db 8080: 10.0.0.7 %d+1", map[bool]int{true: 4, false: 3}[tc.taken])}
				if got := s.HearPlaintext(tc.answer); got != tc.taken {
					t.Errorf("HearPlaintext() = %t, want %t", got, tc.taken)
				}
				if diff := cmp.Diff(want, summary(s)); diff != "" {
					t.Errorf("PlaintextOf() (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// lone returns the state of a single replica.
func lone(t *testing.T, plane *agentstest.Plane) *observed.State {
	t.Helper()
	s, err := observed.New(observed.Options{
		Authority: plane.Authority, View: plane.Builder.View, Observe: func(mesh.ID, mesh.Observation) {}, Logger: slog.New(slog.DiscardHandler), Now: time.Now,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func wantSummary(t *testing.T, s *observed.State, want ...string) {
	t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), summary(s)); diff != "" {
		t.Errorf("PlaintextOf() (-want +got):\n%s", diff)
	}
}

// TestPlaintextOfPodsThatAreGone checks that the counts of removed agents stay with their workload for a day after the
// last traffic, and are counted once.
func TestPlaintextOfPodsThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := planeWith(t)
		s := lone(t, plane)
		report(s, db0, 1, "p1", counted(3, "10.0.0.7"))
		report(s, db0, 2, "p2", counted(1, "10.0.0.8")) // another process of the agent
		wantSummary(t, s, "default/db-0 /ns/shop/sa/db 8080: 10.0.0.8 1+1", "past /ns/shop/sa/db 8080: 10.0.0.7 3+0")

		successor := db0
		successor.Instance = "2"
		plane.Builder.Set("test", dataplaneOf(successor))
		synctest.Wait()
		report(s, db0, 3, "p2", counted(9, "10.0.0.9"))
		wantSummary(t, s, "default/db-0 /ns/shop/sa/db 8080: 10.0.0.8 1+1", "past /ns/shop/sa/db 8080: 10.0.0.7 3+0") // from an earlier pod
		report(s, successor, 4, "p3", counted(2, "10.0.0.7"))
		plane.Builder.Delete("test", mesh.Key{Kind: mesh.KindDataplane, Mesh: db0.Mesh, Name: db0.Dataplane})
		synctest.Wait()
		s.Gone(db0.ID())
		s.Gone(db0.ID())
		if _, past, _ := s.PlaintextOf("default"); len(past) != 1 || past[0].Sources[netip.MustParseAddr("10.0.0.7")].Count != 5 || past[0].Sources[netip.MustParseAddr("10.0.0.8")].Count != 1 {
			t.Errorf("counts of deleted pods: %+v", past)
		}
		time.Sleep(observed.PlaintextKept - 2*time.Minute)
		if len(summary(s)) != 2 {
			t.Errorf("after less than a day: %q", summary(s))
		}
		time.Sleep(2 * time.Minute)
		wantSummary(t, s)
	})
}

// TestPlaintextThatGoesOnAsItsAgentEnds checks that open traffic ends with its agent. A connection counts from its end
// on, a request from its begin.
func TestPlaintextThatGoesOnAsItsAgentEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for requests, want := range map[bool]string{true: "3+0", false: "4+0"} {
			s := lone(t, planeWith(t))
			said := counted(3, "10.0.0.7")
			said.Inbounds[0].Requests = requests
			report(s, db0, 1, "p1", said)
			report(s, db0, 2, "p2", counted(1, "10.0.0.8"))
			wantSummary(t, s, "default/db-0 /ns/shop/sa/db 8080: 10.0.0.8 1+1", "past /ns/shop/sa/db 8080: 10.0.0.7 "+want)
		}
	})
}

// TestPlaintextBeforeTheView checks reports that arrive before the view has the Dataplane, as at the start.
func TestPlaintextBeforeTheView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := agentstest.New(t)
		s := lone(t, plane)
		report(s, db0, 1, "p1", counted(3, "10.0.0.7"))
		wantSummary(t, s)
		successor := db0
		successor.Instance = "2"
		for _, who := range []identity.Subject{successor, db0} { // the first one is another pod of the same name
			plane.Builder.Set("test", dataplaneOf(who))
			synctest.Wait()
			s.Heard(db0.ID())
			if who == successor {
				wantSummary(t, s)
			}
		}
		wantSummary(t, s, "default/db-0 /ns/shop/sa/db 8080: 10.0.0.7 3+1")
	})
}

// TestPlaintextLimits checks that a replica's memory is bounded, whatever agents report.
func TestPlaintextLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := planeWith(t)
		s := lone(t, plane)
		m := &agentv1.Plaintext{}
		for port := range agentv1.MaxReported {
			in := proto.CloneOf(counted(1).GetInbounds()[0])
			in.Port = uint32(port)
			for i := range agentv1.MaxReported {
				in.Sources = append(in.Sources, &agentv1.PlaintextSource{Address: fmt.Sprintf("10.0.%d.%d", port, i), Tally: &agentv1.PlaintextTally{
					Count: uint64(100 - i), First: durationpb.New(time.Hour), Last: durationpb.New(time.Duration(i) * time.Second),
				}})
			}
			m.Inbounds = append(m.Inbounds, in)
		}
		if err := agentv1.CheckPlaintext(m); err != nil {
			t.Fatal(err)
		}
		check := func(ports []observed.Plaintext) {
			t.Helper()
			sources, sum := 0, uint64(0)
			for _, p := range ports {
				sources += len(p.Sources)
				for _, t := range p.Sources {
					sum += t.Count
				}
				sum += p.Others.Count
			}
			if want := uint64(agentv1.MaxReported) * (20*100 - 190); sources > agentv1.MaxReported*agentv1.MaxReported/2 || sum != want {
				t.Errorf("%d sources with the sum %d are kept, want %d", sources, sum, want)
			}
		}
		report(s, db0, 1, "p1", m)
		proxies, _, _ := s.PlaintextOf("default")
		check(proxies[db0.ID()].Ports)
		report(s, db0, 2, "p2", &agentv1.Plaintext{})
		_, past, _ := s.PlaintextOf("default")
		var of []observed.Plaintext
		for _, p := range past {
			of = append(of, p.Plaintext)
		}
		check(of)
	})
}

// TestPlaintextOfMorePortsThanAreKept checks that the counts of removed pods are reported for a shorter time if some
// were dropped.
func TestPlaintextOfMorePortsThanAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := planeWith(t)
		s := lone(t, plane)
		const kept = 5000
		count := func(agents int) (ports int, since time.Time) {
			for i := range agents {
				m := &agentv1.Plaintext{}
				for port := range agentv1.MaxReported {
					in := proto.CloneOf(counted(1, "10.0.0.7").GetInbounds()[0])
					in.Port = uint32(i*agentv1.MaxReported + port)
					m.Inbounds = append(m.Inbounds, in)
				}
				report(s, db0, int64(i+1), fmt.Sprint("p", i), m)
			}
			_, past, since := s.PlaintextOf("default")
			return len(past), since
		}
		_, began := count(0)
		time.Sleep(time.Hour)
		if ports, since := count(kept/agentv1.MaxReported + 1); ports != kept || !since.Equal(began) {
			t.Errorf("%d ports are kept since %s, want %d since %s", ports, since, kept, began)
		}
		if ports, since := count(kept/agentv1.MaxReported + 2); ports != kept || since.Before(began.Add(time.Hour)) {
			t.Errorf("%d ports are kept since %s, want %d, and a time that shows dropped counts", ports, since, kept)
		}
	})
}

// TestPlaintextAtTheLimitIsTold checks that a report at the limit stays within the limits of other replicas.
func TestPlaintextAtTheLimitIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plane := planeWith(t)
		s := lone(t, plane)
		most := func() *agentv1.PlaintextTally {
			return &agentv1.PlaintextTally{
				Count: agentv1.MaxTally, Open: agentv1.MaxOpen, First: durationpb.New(agentv1.MaxAgo), Last: durationpb.New(agentv1.MaxAgo),
			}
		}
		m := &agentv1.Plaintext{}
		for port := range agentv1.MaxReported {
			in := &agentv1.PlaintextInbound{Port: uint32(port), Others: most()}
			for i := range agentv1.MaxReported {
				in.Sources = append(in.Sources, &agentv1.PlaintextSource{Address: fmt.Sprintf("10.0.%d.%d", port, i), Tally: most()})
			}
			m.Inbounds = append(m.Inbounds, in)
		}
		if err := agentv1.CheckPlaintext(m); err != nil {
			t.Fatal(err)
		}
		report(s, db0, 1, "p1", m)
		time.Sleep(time.Hour)
		var told peerv1.Proxy
		if !s.Tell(db0.ID(), &told) || len(told.GetPlaintext().GetSaid().GetInbounds()) != agentv1.MaxReported {
			t.Fatalf("other replicas get %v", told.GetPlaintext())
		}
		if err := agentv1.CheckPlaintext(told.GetPlaintext().GetSaid()); err != nil {
			t.Errorf("other replicas reject the report: %v", err)
		}
	})
}
