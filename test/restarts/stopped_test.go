package restarts

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/seeded"
)

// playTen plays a scenario with ten pods, of which one may be unavailable. They have one check a second, and
// threshold is the user's failure threshold.
func playTen(t *testing.T, v variant, threshold int32, play func(ctx context.Context, s *simulation, w *workload)) (wrongs []string) {
	t.Helper()
	seeded.Play(t, 1, func(ctx context.Context, j *seeded.Journal) {
		if v != whole {
			j.Expect()
		}
		s, w := newSimulation(j, 1, v), newWorkload("web", 10)
		w.probes = []mesh.Probe{{
			Container: "app", Type: mesh.ProbeLiveness, Guarded: true, HTTPGet: &mesh.HTTPGetProbe{Path: "/alive", Port: 8080},
			TimeoutSeconds: 1, PeriodSeconds: 1, FailureThreshold: threshold,
		}}
		s.startReplica(ctx)
		s.deploy(ctx, w, 1)
		s.wait(ctx, time.Minute)
		play(ctx, s, w)
		s.end()
		wrongs = j.Wrongs()
	})
	return wrongs
}

// restarted returns the number of restarts.
func (s *simulation) restarted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.made)
}

// Agents that are stopped or have no CPU cause no restart, whether or not the kubelet ends their sidecars.
func TestStoppedAgentsRestartNothing(t *testing.T) {
	for name, d := range map[string]time.Duration{"30 s": 30 * time.Second, "two minutes": 2 * time.Minute} {
		for _, threshold := range []int32{1, 3} {
			playTen(t, whole, threshold, func(ctx context.Context, s *simulation, w *workload) {
				s.stopAgents(ctx, w.pods, d)
				s.wait(ctx, 5*time.Minute)
				if n := s.restarted(); n > 0 {
					s.Wrong("after agents were stopped for %s %d containers have restarted with threshold %d", name, n, threshold)
				}
				if ended := w.pods[0].sidecars > 0; ended != (d >= hungFor) {
					s.Wrong("sidecars that were stopped for %s were ended: %t", name, ended)
				}
			})
		}
	}
}

// With the user's timeout and threshold, the kubelet restarts all of them at once.
func TestNumbersOfTheKubeletAreNeeded(t *testing.T) {
	wrongs := playTen(t, usersNumbers, 3, func(ctx context.Context, s *simulation, w *workload) { s.stopAgents(ctx, w.pods, 30*time.Second) })
	if n := len(slices.DeleteFunc(wrongs, func(text string) bool { return !strings.Contains(text, noGrant) })); n < 10 {
		t.Errorf("%d of 10 containers restart without a grant while their agents are stopped, want all", n)
	}
}

// While failures are held back, nothing resets the kubelet's count: three ends of each sidecar stay below the
// threshold. A grant afterwards still causes a restart.
func TestThreeDeathsDuringAHold(t *testing.T) {
	playTen(t, whole, 1, func(ctx context.Context, s *simulation, w *workload) {
		s.setBudget(w, 0)
		s.wait(ctx, time.Minute)
		for _, p := range w.pods {
			s.setFault(p, &fault{heals: 1})
		}
		for range 3 {
			s.wait(ctx, time.Minute)
			s.stopAgents(ctx, w.pods, 2*time.Minute)
		}
		s.wait(ctx, time.Minute)
		if n := s.restarted(); n > 0 {
			s.Wrong("%d containers have restarted while all are held", n)
		}
		for _, p := range w.pods {
			if c := p.containers[0]; c.worker.run != 3 || c.worker.last != failure {
				s.Wrong("the kubelet has counted %d failures of %s, want one for each end of its sidecar", c.worker.run, p.name)
			}
		}
		s.setBudget(w, 1)
		s.wait(ctx, 20*time.Minute)
		if n, failing := s.restarted(), s.failing(); n != len(w.pods) || len(failing) > 0 {
			s.Wrong("with a budget %d of 10 have restarted, and %q fail", n, failing)
		}
	})
}

// A grant leads to a restart after as many failures as the user's threshold, or after one more than the kubelet's
// threshold.
func TestGrantedRestartIsPrompt(t *testing.T) {
	for _, threshold := range []int32{1, 3, 20} {
		playTen(t, whole, threshold, func(ctx context.Context, s *simulation, w *workload) {
			s.setFault(w.pods[0], &fault{heals: 1})
			s.wait(ctx, time.Duration(max(threshold, 1+mesh.GuardedFailureThreshold)+5)*time.Second)
			if n := s.restarted(); n != 1 {
				s.Wrong("%d containers have restarted with threshold %d, want the one that fails", n, threshold)
			}
		})
	}
}
