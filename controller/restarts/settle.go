package restarts

import (
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// settle writes the status of each grant that lags behind the leader's state, whether a write failed or an earlier
// leader did not write it.
//
// An open grant of an earlier leader gets the current epoch, since an agent that has seen a later epoch would reject
// the grant and hold the failure until it expires. It keeps its name, so that an agent does not use it twice. It counts
// against the budget since restartbudget.Restore. A grant that a deposed leader wrote later also counts, since its
// agent may have used it, but it is refunded: no leader checked it against the budget, and agents without the later
// epoch accept it.
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

// sentStatus is a sent status without its times, and the version of the object that it updates.
type sentStatus struct {
	version, outcome string
	epoch            int64
	ended            bool
}

// writeStatus queues a grant's status, unless the API server has accepted it and no watch has the object yet.
func (l *leader) writeStatus(key watch.Key, g *grant, status v1alpha1.RestartGrantStatus) {
	now := sentStatus{g.version, status.Outcome, status.Epoch, status.Ended != nil}
	if l.taken[key] == now || l.writer.flies(writeID{classStatus, key}) {
		return
	}
	l.sent[key] = now
	l.patchStatus(key, status)
}

// statusFor returns the right status of a grant, and whether the current one differs.
func (l *leader) statusFor(
	now time.Time, key watch.Key, g *grant, in restartbudget.Input,
) (v1alpha1.RestartGrantStatus, bool) {
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
	// The grant ended before the next one was granted, but its status was not written.
	over := g.Grant
	over.Outcome, over.Ended = restartbudget.Refunded, now
	if last.ID.Restarts > g.ID.Restarts {
		over.Outcome, over.Spent = restartbudget.Spent, now
	}
	return statusOf(over), true
}

// statusOfLast is statusFor for the last grant of a container, whose state is last.
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

// lateOf returns the grants that a deposed leader wrote after a later leader's first grant. It misses grants of the
// same second, since creation times of objects are in seconds.
func lateOf(all map[watch.Key]*grant) []restartbudget.GrantID {
	first := map[int64]time.Time{} // by epoch of the writer
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

// adopt takes over the judgments that a deposed leader has written since this term began. That leader may have seen the
// probe pass after the restart, while this one has only seen it fail.
func (l *leader) adopt() {
	for _, key := range l.grants.Keys() {
		g := l.grants.Get(key)
		if g == nil || g.Outcome != restartbudget.Helped && g.Outcome != restartbudget.Unhelpful {
			continue
		}
		known, is := l.judged[g.ID]
		if last, any := l.state.Last(g.ID.ContainerKey); any && last.ID == g.ID {
			known, is = last, true
		}
		if is && furthest[g.Outcome] > furthest[known.Outcome] {
			l.state.Adopt(known, g.Grant)
			delete(l.judged, g.ID)
		}
	}
}

// furthest orders outcomes: an outcome only changes to one with a higher number. A probe that was seen to pass after the
// restart counts for more than one that was not.
var furthest = map[restartbudget.Outcome]int{
	restartbudget.Open: 0, restartbudget.Refunded: 1, restartbudget.Spent: 1, restartbudget.Unhelpful: 2,
	restartbudget.Helped: 3, restartbudget.Released: 4,
}

// saysLess reports whether the written status of a grant lags behind the known one.
func saysLess(written, known restartbudget.Grant) bool {
	return furthest[written.Outcome] < furthest[known.Outcome] || written.Ended.IsZero() && !known.Ended.IsZero()
}

// refund ends grants that agents report as unused. A restarted sidecar may report a grant that its container did use:
// for a grant of an earlier leader, this leader waits until that use would be visible.
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

// sweep deletes grants that ended long ago. It keeps unhelpful ones while pods of their template exist. It keeps open
// ones, and those whose effect is unknown, while their pod exists, since the clock of the leader that granted them may
// be behind.
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
		if g.Outcome == restartbudget.Unhelpful && l.state.Unhelpful(g.Workload, g.Template) ||
			(g.Ended.IsZero() || unjudged) && hasPod(in, &g.Grant) {
			continue
		}
		l.remove(key)
	}
}
