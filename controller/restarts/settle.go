package restarts

import (
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// settle has the status of each grant written that says less than the leader knows: what could not be written is found again so, and what a leader before
// this one has left.
//
// A grant of an earlier leader that is open is made valid, with the epoch of this one: an agent that has seen a later epoch would not take it, and hold
// the failure until its time is over. It keeps its name, so that an agent which has used it up does not use it again. It is a reservation since
// restartbudget.Restore. One that was written after that, by a leader that did not know that it was none, becomes a reservation too, since its agent
// may have used it already, but is taken back: no leader has counted it beside the others, and an agent takes it that has not seen a later epoch.
func (l *leader) settle(now time.Time, in restartbudget.Input) {
	for id, g := range l.judged {
		if !hasPod(in, &g) {
			delete(l.judged, id)
		}
	}
	for _, key := range l.grants.Keys() {
		g := l.grants.Get(key)
		if g == nil {
			continue
		}
		if status, differs := l.statusFor(now, key, g, in); differs {
			l.writeStatus(key, g, status)
		}
	}
}

// sentStatus is a status that was sent, without its times, and the version of the object for which it was.
type sentStatus struct {
	version, outcome string
	epoch            int64
	ended            bool
}

// writeStatus has the status of a grant written, unless the API server has taken it, and no watch has the object since.
func (l *leader) writeStatus(key watch.Key, g *grant, status v1alpha1.RestartGrantStatus) {
	now := sentStatus{g.version, status.Outcome, status.Epoch, status.Ended != nil}
	if l.taken[key] == now || l.writer.flies(writeID{classStatus, key}) {
		return
	}
	l.sent[key] = now
	l.patchStatus(key, status)
}

// statusFor returns what the status of a grant should be, and false if it is that.
func (l *leader) statusFor(now time.Time, key watch.Key, g *grant, in restartbudget.Input) (v1alpha1.RestartGrantStatus, bool) {
	if !hasPod(in, &g.Grant) {
		return v1alpha1.RestartGrantStatus{}, false
	}
	if g.epoch < l.epoch && !l.known[key] {
		l.known[key], l.late[g.ID] = true, l.state.Add(now, g.Grant)
	}
	last, is := l.state.Last(g.ID.ContainerKey)
	if known, was := l.judged[g.ID]; was && last.ID != g.ID {
		if saysLess(g.Grant, known) {
			return statusOf(known), true
		}
		delete(l.judged, g.ID)
	}
	switch {
	case is && last.ID == g.ID:
		return l.statusOfLast(now, g, last)
	case !is || g.Outcome != restartbudget.Open || l.writer.busy(writeID{classStatus, key}):
		return v1alpha1.RestartGrantStatus{}, false
	}
	// It has been over since before the last one was granted, but that was not written.
	over := g.Grant
	over.Outcome, over.Ended = restartbudget.Refunded, now
	if last.ID.Restarts > g.ID.Restarts {
		over.Outcome, over.Spent = restartbudget.Spent, now
	}
	return statusOf(over), true
}

// statusOfLast is statusFor for the last grant of a container, of which the state knows last.
func (l *leader) statusOfLast(now time.Time, g *grant, last restartbudget.Grant) (v1alpha1.RestartGrantStatus, bool) {
	if l.late[g.ID] && last.Outcome == restartbudget.Open {
		last.Outcome, last.Ended = restartbudget.Refunded, now
		return statusOf(last), g.Outcome == restartbudget.Open
	}
	status, epoch := statusOf(last), g.epoch
	if last.Outcome == restartbudget.Open {
		epoch = max(epoch, l.epoch)
		status.Epoch = epoch
	}
	return status, epoch > g.epoch || saysLess(g.Grant, last)
}

// lateOf returns the grants that a leader has written when it was none any more: a later one had granted something before. The API server has times of
// objects in seconds, so that one of the same second is not found.
func lateOf(all map[watch.Key]*grant) []restartbudget.GrantID {
	first := map[int64]time.Time{} // by epoch of who has written
	for _, g := range all {
		if at, is := first[g.writer]; !is || g.created.Before(at) {
			first[g.writer] = g.created
		}
	}
	var late []restartbudget.GrantID
	for _, g := range all {
		for epoch, at := range first {
			if epoch > g.writer && at.Before(g.created) {
				late = append(late, g.ID)
				break
			}
		}
	}
	return late
}

func hasPod(in restartbudget.Input, g *restartbudget.Grant) bool {
	w := in.Workloads[g.Workload]
	return w != nil && w.Pods[g.ID.PodUID] != nil
}

// furthest orders outcomes: one follows from those before it.
var furthest = map[restartbudget.Outcome]int{
	restartbudget.Open: 0, restartbudget.Refunded: 1, restartbudget.Spent: 1, restartbudget.Helped: 2, restartbudget.Unhelpful: 2, restartbudget.Released: 3,
}

// saysLess reports whether what is written of a grant is behind what is known of it.
func saysLess(written, known restartbudget.Grant) bool {
	return furthest[written.Outcome] < furthest[known.Outcome] || written.Ended.IsZero() && !known.Ended.IsZero()
}

// refund ends grants that were not used, as agents say. A sidecar that has restarted may say so of a grant by which its container has restarted: for one of
// an earlier leader that may not have been seen yet.
func (l *leader) refund(now time.Time, liveness map[watch.Key]agentv1.ReportedLiveness) {
	catchingUp := l.state.CatchingUp(now)
	for pod, said := range liveness {
		for _, name := range said.Report.GetUnused() {
			key := watch.Key{Namespace: pod.Namespace, Name: name}
			if g := l.grants.Get(key); g != nil && g.pod == pod && (!catchingUp || !l.known[key]) {
				l.state.Refund(now, g.ID)
			}
		}
	}
}

// sweep has grants deleted that have been over for long. Those that did not help are kept while there are pods of their template, and those that are not
// over, or of which it is not known yet whether they have helped, while there is their pod: the clock of the leader that has granted it may be behind.
func (l *leader) sweep(now time.Time, in restartbudget.Input) {
	if l.state.CatchingUp(now) {
		return
	}
	for _, key := range l.grants.Keys() {
		g := l.grants.Get(key)
		if g == nil || now.Sub(g.Granted) < keepGrants {
			continue
		}
		last, is := l.state.Last(g.ID.ContainerKey)
		unjudged := g.Outcome == restartbudget.Spent && is && last.ID == g.ID
		if g.Outcome == restartbudget.Unhelpful && l.state.Unhelpful(g.Workload, g.Template) || (g.Ended.IsZero() || unjudged) && hasPod(in, &g.Grant) {
			continue
		}
		l.remove(key)
	}
}
