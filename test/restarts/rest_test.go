package restarts

import (
	"context"
	"testing/synctest"
	"time"
)

const (
	// quiet is enough for everything that waits for a stopped component.
	quiet = 3 * time.Minute
	// patience is how long restarts may take without faults: one after the other, and some after a restart in
	// progress has taken its ten minutes.
	patience = 90 * time.Minute
)

// rest repairs everything except for failing containers, and checks that all failing containers
// restart.
func (s *simulation) rest(ctx context.Context) {
	s.Note("everything is mended")
	s.mu.Lock()
	s.away = time.Time{}
	s.mu.Unlock()
	for name := range s.thaws {
		s.thaws[name] = time.Time{}
	}
	s.replacements = time.Time{}
	for _, r := range s.replicas {
		r.transport.set(noTrap)
	}
	s.step(ctx)
	for len(s.replicas) < 2 {
		s.startReplica(ctx)
	}
	for _, w := range s.workloads {
		s.setBudget(w, 1)
	}
	s.release()
	s.wait(ctx, quiet)
	for _, w := range s.workloads { // pods created during the rollout, and before its end
		for _, p := range s.live(w) {
			s.mu.Lock()
			for _, c := range p.containers {
				if c.broken == nil && s.random.IntN(2) == 0 {
					c.broken = &fault{heals: 1}
					s.Note("%s of %s fails", c.name(), p.name)
				} else if c.broken != nil {
					c.broken.heals = 1
				}
			}
			s.mu.Unlock()
		}
	}
	s.check(ctx)
}

// release gives a new template to workloads that wait for one.
func (s *simulation) release() {
	for _, w := range s.workloads {
		if s.waitsForTemplate(w) {
			s.mu.Lock()
			w.template++
			s.Note("%s gets another template", w.name)
			s.mu.Unlock()
		}
	}
}

// waitsForTemplate reports whether restarts of a workload may be waiting for another template.
func (s *simulation) waitsForTemplate(w *workload) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(w.unhelpful[w.template]) >= 2 || w.bad[w.template] != nil
}

// check waits until all containers pass.
func (s *simulation) check(ctx context.Context) {
	until := time.Now().Add(patience)
	for {
		failing := s.failing()
		if len(failing) == 0 {
			synctest.Wait()
			return
		}
		if time.Now().After(until) {
			s.noteDecisions()
			s.Wrong("%q fail and are not restarted", failing)
			return
		}
		if s.Failed() {
			return
		}
		s.release()
		s.wait(ctx, 10*time.Second)
	}
}

// noteDecisions logs why the leader does not grant.
func (s *simulation) noteDecisions() {
	for _, name := range s.names() {
		if round := s.replicas[name].restarts.Round(); round != nil {
			for _, d := range round.Decisions {
				s.Note("%s decides on %v: %s", name, d.Request.ContainerKey, d)
			}
		}
	}
}

// failing returns the failing containers.
func (s *simulation) failing() []string {
	var all []string
	for _, w := range s.workloads {
		for _, p := range s.live(w) {
			s.mu.Lock()
			for _, c := range p.containers {
				if c.failing() {
					all = append(all, c.name()+" of "+p.name)
				}
			}
			s.mu.Unlock()
		}
	}
	return all
}
