package replicas

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/seeded"
	"github.com/sonde-mesh/sonde/test/virtualplane"
)

// An agent is told that its endpoints are ready only after the Envoys of another replica have the change, too.
func TestEndpointsWaitForTheOtherReplica(t *testing.T) {
	directory := t.TempDir()
	seeded.Play(t, 1, func(ctx context.Context, j *seeded.Journal) {
		s := newSimulation(j, 1, directory, true)
		s.put(&mesh.Mesh{Name: mesh.DefaultMesh})
		s.startReplica(ctx)
		s.startReplica(ctx)
		near, far := s.replicas["cp-1"], s.replicas["cp-2"]
		s.servingCA = near.Serving.CA()
		a := &agent{sim: s, name: "web-1", host: "10.0.1.1", epochs: true, serving: true, files: &virtualplane.Files{}}
		a.caFile = s.writeCA(a)
		s.agents = append(s.agents, a)
		s.setCut(a.host, far.host, true)
		s.put(s.dataplane(a))
		time.Sleep(2 * longestLag)
		a.start(ctx)
		time.Sleep(time.Minute)
		a.connectEnvoy(near)
		told := func(when, want string) {
			time.Sleep(3 * time.Second)
			a.mu.Lock()
			defer a.mu.Unlock()
			if got := a.unready; (got == nil) != (want == "") || got != nil && !strings.Contains(got.Error(), want) {
				s.Wrong("%s, the agent is told %v, want %q", when, got, want)
			}
		}
		told("at first", "")
		a.setServing(false)
		told("while the application does not serve", "refused")
		taken := far.Agents.Publishing([]mesh.ID{a.id()})
		a.setServing(true)
		told("while the other replica lacks the change", "on its way to other proxies")
		taken()
		told("once it has it", "")
		s.end()
	})
}
