package replicas

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/freeze"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/partition"
	"github.com/sonde-mesh/sonde/test/seeded"
	"github.com/sonde-mesh/sonde/test/virtualplane"
)

// judge makes the replica judge whether the mesh is seen, with nodes that are seen. It returns a function with the
// reason why the replica must draw no conclusion from silence.
func (r *replica) judge(v *virtualplane.Replica) func() string {
	if !r.sim.judged {
		return nil
	}
	r.freeze = freeze.New(freeze.Options{
		Nodes: func() (map[string]freeze.Node, error) {
			return map[string]freeze.Node{"a1": {Zone: "a"}, "a2": {Zone: "a"}, "b1": {Zone: "b"}, "b2": {Zone: "b"}}, nil
		},
		Proxies: func(now time.Time) []partition.Member {
			var all []partition.Member
			for name := range r.Pipeline.Builder.View().Mesh(mesh.DefaultMesh).Proxies.All() {
				m := partition.Member{Name: mesh.MakeID(mesh.DefaultMesh, name), Zone: zoneOf(name), Heard: now}
				if !r.Agents.Connected(m.Name) {
					var joined bool
					if m.Heard, joined = r.Agents.LastSeen(m.Name); !joined {
						continue
					}
				}
				all = append(all, m)
			}
			return all
		},
		Streams: func(ctx context.Context) (map[string]bool, bool) {
			all, missing := r.Peers.Streaming(ctx)
			return all, len(missing) == 0
		},
		Lacking: v.Peers.Missing, Apply: func(map[string]int) {}, Tell: v.Peers.ChangedFreeze, Record: func(events.Event) {}, Logger: r.log(),
	})
	v.Peers.ConnectFreeze(r.freeze)
	return r.freeze.Held
}

// zoneOf puts half of the proxies into each of two zones.
func zoneOf(name string) string {
	if strings.ContainsAny(name[len(name)-1:], "02468") {
		return "a"
	}
	return "b"
}

// fleet is the number of agents. test/freeze has a thousand simulated agents.
const fleet = 20

// All agents lose their sessions with two replicas at once: their endpoints stay at both, because the replicas
// conclude nothing from the silence. If only a few do, they are handled as usual.
func TestAgentsFallSilent(t *testing.T) {
	for name, tc := range map[string]struct {
		gone int
		held string
	}{
		"all": {fleet, "most proxies of the mesh are not seen"},
		"few": {1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			seeded.Play(t, 1, func(ctx context.Context, j *seeded.Journal) {
				s := newSimulation(j, 1, directory, true)
				s.judged = true
				resign := s.fleet(ctx)
				s.holds("at the start", "")
				for _, a := range s.agents[:tc.gone] {
					for _, r := range s.replicas {
						s.network.SetCut(a.host, r.host, true)
					}
				}
				time.Sleep(3 * time.Minute)
				s.holds("cut off", tc.held)
				for _, a := range s.agents[:tc.gone] {
					for _, r := range s.replicas {
						s.network.SetCut(a.host, r.host, false)
					}
				}
				time.Sleep(2 * time.Minute)
				s.holds("seen again", "")
				resign()
				s.end()
			})
		})
	}
}

// fleet starts two replicas, of which one leads until resign is called, and the agents.
func (s *simulation) fleet(ctx context.Context) (resign func()) {
	s.put(&mesh.Mesh{Name: mesh.DefaultMesh})
	for range 2 {
		s.startReplica(ctx)
	}
	leader := s.replicas["cp-1"]
	leading, cancel := context.WithCancel(ctx)
	var lead errgroup.Group
	lead.Go(func() error { return leader.freeze.Lead(leading, 1) })
	s.servingCA = leader.Serving.CA()
	for i := range fleet {
		a := &agent{sim: s, name: fmt.Sprint("web-", i), host: fmt.Sprintf("10.1.%d.%d", i/250, i%250+1), epochs: true, files: &virtualplane.Files{}}
		a.caFile = s.writeCA(a)
		s.agents = append(s.agents, a)
		d := s.dataplane(a)
		d.Spec.Networking.Inbound[0].ServiceProbe, d.Spec.Networking.Outbound = nil, nil
		s.put(d)
	}
	time.Sleep(2 * longestLag)
	for _, a := range s.agents {
		a.start(ctx)
	}
	time.Sleep(time.Minute)
	s.connectEnvoys()
	time.Sleep(time.Minute)
	return func() {
		cancel()
		if err := lead.Wait(); err != nil {
			s.Wrong("lead: %v", err)
		}
	}
}

// holds checks that all endpoints are ready at both replicas, and why both hold them ("" if they do not).
func (s *simulation) holds(when, held string) {
	for name, r := range s.replicas {
		_, service := r.Pipeline.Builder.View().Service(mesh.MakeID(mesh.DefaultMesh, workload))
		ready := 0
		for _, e := range service.Endpoints {
			if e.Health == meshview.Ready {
				ready++
			}
		}
		if ready != fleet {
			s.Wrong("%s, %s: %d endpoints are ready", when, name, ready)
		}
		if got := r.freeze.Held(); !strings.HasPrefix(got, held) || held == "" && got != "" {
			s.Wrong("%s, %s: held is %q, want %q", when, name, got, held)
		}
	}
}
