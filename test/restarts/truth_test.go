package restarts

import (
	"encoding/json"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/internal/podcause"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// late is the longest delay until a leader knows the state of pods and budgets, with watches that break and are
// reopened. It knows restarts by grants at once, because they are reserved.
const late = 25 * time.Second

// lateness is how long an agent may take to learn that a grant has ended, besides its period and without faults: it
// needs the leader's write, and a watch.
const lateness = 15 * time.Second

// granted is the state of a RestartGrant.
type granted struct {
	name, uid, container string
	restarts             int
	epoch                int64
	at, decided          time.Time // a stopped leader writes late
	late                 bool      // a later leader existed when it was created
	outcome              restartbudget.Outcome
	refunded             time.Time
	used                 bool
}

// restart is a restart that the kubelet made because a liveness probe failed.
type restart struct {
	container *container
	count     int // restart count before
	at        time.Time
	grant     *granted // nil if it needed none
	ready     bool     // the pod has been Ready since
	over      bool     // and the container was checked
	unhelpful bool     // the leader has long known that the container has failed since, and never passed
}

// inProgress is as the leader must count it: until it is over, or ten minutes after the grant.
func (r *restart) inProgress() bool {
	return r.grant != nil && !r.over && !r.container.pod.gone && time.Since(r.grant.decided) < restartbudget.InProgress
}

// wroteGrant is an apiServer.wrote.
func (s *simulation) wroteGrant(change string, object []byte) {
	var o v1alpha1.RestartGrant
	if err := json.Unmarshal(object, &o); err != nil {
		panic(err) // decoded successfully before
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.granted[o.Name]; g != nil {
		g.outcome = restartbudget.Outcome(o.Status.Outcome)
		if p := s.podOf(g.uid); p != nil && g.outcome == restartbudget.Unhelpful {
			p.of.noteUnhelpful(p.template, g.name)
		}
	}
	switch g := s.granted[o.Name]; {
	case change == "DELETED":
		delete(s.granted, o.Name) // another grant may have the same name
		s.Note("grant %s is deleted", o.Name)
	case g == nil:
		g = &granted{
			name: o.Name, uid: o.Spec.PodUID, container: o.Spec.Container, restarts: int(o.Spec.Restarts), epoch: o.Spec.Epoch, at: time.Now(),
			decided: o.Spec.Granted.Add(-s.clocks[o.Spec.Epoch]), late: o.Spec.Epoch < s.newest,
		}
		s.granted[o.Name] = g
		s.Note("grant %s is made, epoch %d", o.Name, g.epoch)
		if !g.late { // the leader takes the grant back
			s.checkHelps(g)
		}
	case restartbudget.Outcome(o.Status.Outcome) == restartbudget.Refunded && g.refunded.IsZero():
		s.giveBack(g)
		g.refunded = time.Now()
		s.Note("grant %s is refunded", o.Name)
	default:
		s.Note("grant %s is written: %q", o.Name, o.Status.Outcome)
	}
}

// noteUnhelpful records that a restart of a template has not helped.
func (w *workload) noteUnhelpful(template int, grant string) {
	if w.unhelpful[template] == nil {
		w.unhelpful[template] = map[string]bool{}
	}
	w.unhelpful[template][grant] = true
}

// giveBack ends the restarts of a container whose grant is refunded: a leader counts only the last one. An agent may
// return a grant by which the container has restarted, if the kubelet had counted failures before. The caller holds
// mu.
func (s *simulation) giveBack(g *granted) {
	for _, r := range s.made {
		if r.grant != nil && r.grant.uid == g.uid && r.grant.container == g.container && !r.grant.decided.After(g.decided) {
			r.over = true
		}
	}
}

// settle updates which restarts of a pod are over, and which have long been known not to have helped, if all
// reporters are connected. The caller holds mu.
func (s *simulation) settle(p *pod) {
	for _, r := range s.made {
		c := r.container
		if c.pod != p || !c.running || c.restarts <= r.count {
			continue
		}
		r.ready = r.ready || p.ready // a leader may learn late that it has become unready
		if !r.over && r.ready && c.checked {
			r.over = true
			s.Note("the restart of %s of %s is over", c.name(), p.name)
		}
		if r.grant != nil && c.checked && c.failing() && s.calmSince() > time.Minute && time.Since(c.started) > time.Minute {
			r.unhelpful = true
		}
	}
}

// find returns the grant for a container's restart, or nil. A grant counts even if the leader could not know the
// container's last restart. The caller holds mu.
func (s *simulation) find(c *container, excused bool) *granted {
	var found *granted
	for _, g := range s.granted {
		if g.uid == c.pod.uid && g.container == c.name() && !g.used && g.restarts <= c.restarts && (g.refunded.IsZero() || !excused) && (found == nil || found.at.Before(g.at)) {
			found = g
		}
	}
	return found
}

// findUsed returns the open grant by which a container has restarted, if its agent may not know that: the whole
// sidecar has restarted since, and no leader has seen the restart yet. Its budget is still reserved. The caller holds
// mu.
func (s *simulation) findUsed(c *container) *granted {
	for _, r := range s.made {
		if g := r.grant; r.container == c && g != nil && g.outcome == restartbudget.Open && c.pod.forgot.After(r.at) {
			return g
		}
	}
	return nil
}

// restarts checks that a container may restart now. The caller holds mu.
func (s *simulation) restarts(c *container, excused bool) {
	r := &restart{container: c, count: c.restarts, at: time.Now(), grant: s.find(c, excused)}
	if r.grant == nil && !excused {
		r.grant = s.findUsed(c)
	}
	s.made = append(s.made, r)
	switch {
	case r.grant != nil:
		r.grant.used = true
		s.Note("%s of %s restarts by grant %s", c.name(), c.pod.name, r.grant.name)
	case excused:
		s.Note("%s of %s restarts without a grant", c.name(), c.pod.name)
		return
	default:
		s.Wrong("%s of %s %s", c.name(), c.pod.name, noGrant)
		return
	}
	if s.variant == whole && r.grant.late && !s.mustKnow(c.pod, r.grant.at) {
		s.Note("before the leader could take that back")
		r.grant = nil // it needs no budget, and counts as unavailable like any other
		return
	}
	if !r.grant.refunded.IsZero() && s.mustKnow(c.pod, r.grant.refunded) {
		s.Wrong("%s of %s restarts by grant %s, which was refunded %s ago", c.name(), c.pod.name, r.grant.name, time.Since(r.grant.refunded))
	}
	s.checkInProgress(r)
	s.checkUnavailable(r)
}

// mustKnow reports whether the agent of a pod has had the time to learn that a grant has ended: it has a session,
// and since then there was no fault for lateness. Without the API server or a leader, no grant is taken back. The
// caller holds mu.
func (s *simulation) mustKnow(p *pod, over time.Time) bool {
	if !p.lost.IsZero() {
		return false
	}
	if over.Before(p.connected) {
		over = p.connected
	}
	return s.calmFor(lateness, over)
}

// Violations.
const (
	noGrant    = "restarts without a grant"
	tooMany    = "restarts are in progress"
	twoOfAPod  = "restarts beside another container of its pod"
	tooFewLeft = "pods are unavailable with the one that restarts"
)

// checkInProgress checks that no more restarts are in progress than the budget has allowed since the first of them
// was granted. The caller holds mu.
func (s *simulation) checkInProgress(r *restart) {
	p, first := r.container.pod, r.grant.decided
	var others []string
	counted := map[*container]bool{r.container: true} // the next restart of a container replaces the previous one
	for _, other := range s.made {
		if other == r || !other.inProgress() || other.container.pod.of != p.of {
			continue
		}
		if counted[other.container] {
			continue
		}
		counted[other.container] = true
		if other.container.pod == p {
			s.Wrong("%s of %s %s, %s", r.container.name(), p.name, twoOfAPod, other.container.name())
		}
		others = append(others, other.container.name()+" of "+other.container.pod.name+" by "+other.grant.name)
		if other.grant.decided.Before(first) {
			first = other.grant.decided
		}
	}
	if most := p.of.mostSince(s.known(first)); len(others)+1 > most {
		s.Wrong("%d %s of %s, and at most %d may be: %s of %s, and %q", len(others)+1, tooMany, p.of.name, most, r.container.name(), p.name, others)
	}
}

// checkUnavailable checks the budget of a pod that was Ready when its restart was granted: the pod and all pods then
// known to be unavailable, and still unavailable, must not exceed it. The caller holds mu.
func (s *simulation) checkUnavailable(r *restart) {
	p, known := r.container.pod, s.known(r.grant.decided)
	if !p.available || p.availableSince.After(known) {
		return
	}
	available := 0
	for _, q := range p.of.pods {
		reserved := slices.ContainsFunc(s.made, func(other *restart) bool {
			return other.container.pod == q && other.inProgress() && !other.grant.decided.After(r.grant.decided)
		})
		if q != p && !reserved && (q.available || q.availableSince.After(known)) {
			available++
		}
	}
	if most := p.of.mostSince(known); p.of.replicas-available > most {
		s.Wrong("%d %s, %s, and at most %d may be", p.of.replicas-available, tooFewLeft, p.name, most)
	}
}

// checkHelps checks that pods of a template get no more grants after two of its restarts have long been known not to
// help. The caller holds mu.
func (s *simulation) checkHelps(g *granted) {
	p := s.podOf(g.uid)
	if p == nil || p.of.bad[p.template] == nil {
		return
	}
	n := 0
	for _, r := range s.made {
		if r.unhelpful && r.container.pod.of == p.of && r.container.pod.template == p.template && !r.container.pod.gone {
			n++
		}
	}
	if n >= 2 {
		s.Wrong("grant %s, and %d restarts of its template have not helped", g.name, n)
	}
}

// mostSince returns the largest budget in effect at any time since t.
func (w *workload) mostSince(t time.Time) int {
	most := 0
	for i, b := range w.budgets {
		if i+1 == len(w.budgets) || w.budgets[i+1].at.After(t) {
			most = max(most, b.pods)
		}
	}
	return most
}

// ownTurn reports whether an agent may tell the kubelet the truth because it has no session. The
// caller holds mu.
func (s *simulation) ownTurn(p *pod) bool {
	return p.of.away.GetPolicy() != agentv1.WhenAway_HOLD && !p.lost.IsZero() && time.Since(p.lost) >= p.of.away.GetAfter().AsDuration()
}

// whenAway returns a pod's setting for the time without a session.
func (s *simulation) whenAway(id mesh.ID) *agentv1.WhenAway {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.workloads {
		for i, p := range w.pods {
			if p.id() == id {
				away := proto.CloneOf(w.away)
				if away.GetTurns() > 0 {
					away.Turn = uint32(i) % away.GetTurns()
				}
				return away
			}
		}
	}
	return nil
}

// podOf returns the pod, which may have been deleted. The caller holds mu.
func (s *simulation) podOf(uid string) *pod {
	for _, w := range s.workloads {
		for _, p := range w.pods {
			if p.uid == uid {
				return p
			}
		}
	}
	return nil
}

// recorded receives events: no leader may report a restart with a grant as ungranted. Pods that restart in their own
// turn need no grant, and here their leader cannot tell.
func (s *simulation) recorded(e events.Event) {
	if e.Reason != podcause.RestartUnheld {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.workloads {
		for _, p := range w.pods {
			if p.uid == string(e.UID) && w.away.GetPolicy() == agentv1.WhenAway_HOLD {
				s.Wrong("%s: %s", p.name, e.Note)
			}
		}
	}
}
