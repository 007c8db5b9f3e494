package restarts

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/restartbudget"
	"github.com/sonde-mesh/sonde/test/anymesh"
	"github.com/sonde-mesh/sonde/test/seeded"
)

// shareTime is the longest time for a restart of a container beside a namespace that uses up every limit: its check
// and the kubelet's five periods, and a minute in which a limit may be used up; and as long again for a delayed
// watch.
const shareTime = 3 * time.Minute

// TestShares makes all pods of a namespace fail repeatedly, while leaders change. Containers of another namespace
// restart soon: the first namespace cannot use up the breaker or the limit of all restarts alone.
func TestShares(t *testing.T) {
	for name, settings := range map[string]restartbudget.Settings{
		"breaker":   {},
		"perMinute": {PerMinute: 1, Breaker: restartbudget.BreakerLimits{Workloads: 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			seeded.Range(t, 0, slowtest.Rounds(20, 1), func(t *testing.T, seed uint64) {
				seeded.Play(t, seed, func(ctx context.Context, j *seeded.Journal) {
					s := newSimulation(j, seed, whole)
					s.settings = settings
					s.playShares(ctx)
				})
			})
		})
	}
}

func (s *simulation) playShares(ctx context.Context) {
	s.startReplica(ctx)
	s.startReplica(ctx)
	deploy := func(namespace, name string, replicas int) *workload {
		w := newWorkload(name, replicas)
		w.namespace = namespace
		w.probes = []mesh.Probe{{
			Container: "app", Type: mesh.ProbeLiveness, Guarded: true, HTTPGet: &mesh.HTTPGetProbe{Path: "/alive", Port: 8080},
			TimeoutSeconds: 1, PeriodSeconds: 5, FailureThreshold: 1,
		}}
		s.deploy(ctx, w, replicas)
		return w
	}
	var crowd []*workload
	for i := range 4 {
		crowd = append(crowd, deploy("crowd", fmt.Sprint("crowd", i), 2))
	}
	neighbour := deploy(namespace, "web", 3)
	s.wait(ctx, time.Minute)
	for i := range 2 {
		s.Note("round %d", i)
		for range 6 { // the crowd has waited for long, and has used the whole limit
			s.failAll(crowd)
			s.wait(ctx, 10*time.Second)
		}
		if anymesh.Pick(s.random, true, false) && s.leader != nil {
			s.handOver()
			s.wait(ctx, longestWatch)
		}
		before := s.restartsOf(neighbour)
		s.setFault(s.live(neighbour)[i], &fault{heals: 1})
		for waited := time.Duration(0); s.restartsOf(neighbour) == before; waited += secondStep {
			if waited > shareTime {
				s.noteDecisions()
				s.Wrong("%s of another namespace does not restart within %s", neighbour.name, shareTime)
				break
			}
			s.failAll(crowd)
			s.wait(ctx, secondStep)
		}
	}
	if settings := s.settings; settings.PerMinute > 0 && s.restartsOf(crowd...) == 0 {
		s.Wrong("nothing else has restarted: the test shows little")
	}
	s.end()
}

// failAll makes each passing container of workloads fail until it restarts.
func (s *simulation) failAll(all []*workload) {
	for _, w := range all {
		for _, p := range s.live(w) {
			s.setFault(p, &fault{heals: 1})
		}
	}
}

// restartsOf returns the number of restarts of containers of workloads.
func (s *simulation) restartsOf(all ...*workload) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.made {
		for _, w := range all {
			if r.container.pod.of == w {
				n++
			}
		}
	}
	return n
}
