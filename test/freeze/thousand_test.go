package freeze

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/controller/freeze"
	"github.com/sonde-mesh/sonde/test/seeded"
)

// A thousand proxies lose their sessions and streams with two replicas at once, and do not reconnect: while their
// nodes are healthy, no replica freezes a zone or removes endpoints. If thirty do, they are handled as usual.
func TestAThousandProxies(t *testing.T) {
	for name, tc := range map[string]struct {
		gone int
		want string
	}{
		"all":    {1000, "most proxies of the mesh are not seen (all); most proxies of zone a are not seen (all); most proxies of zone b are not seen (all)"},
		"thirty": {30, ""},
	} {
		t.Run(name, func(t *testing.T) {
			seeded.Play(t, 0, func(ctx context.Context, j *seeded.Journal) {
				s := newSimulation(j, 0)
				s.zones, s.nodes, s.proxies = []string{"a", "b"}, map[string]freeze.Node{}, nil
				for i := range 1000 {
					zone := s.zones[i%2]
					node := fmt.Sprintf("%s%d", zone, i%20)
					s.nodes[node] = freeze.Node{Zone: zone}
					s.proxies = append(s.proxies, &proxy{name: fmt.Sprintf("%s-%d", node, i), zone: zone})
				}
				s.run(ctx, func(ctx context.Context) {
					s.mu.Lock()
					for _, p := range s.proxies[:tc.gone] {
						s.disconnect(p, true)
					}
					s.mu.Unlock()
					wait(ctx, time.Minute)
					s.mu.Lock()
					defer s.mu.Unlock()
					for _, r := range s.replicas {
						if held := r.Held(); held != tc.want {
							j.Wrong("replica %s: held is %q, want %q", r.name, held, tc.want)
						}
						if v := r.Verdict(); len(v.Zones) > 0 {
							j.Wrong("replica %s: zones are frozen whose nodes are seen: %+v", r.name, v.Zones)
						}
					}
				})
			})
		})
	}
}
