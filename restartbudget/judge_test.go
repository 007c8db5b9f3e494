package restartbudget

import (
	"errors"
	"fmt"
	"time"
)

// judge keeps its own simple record of grants, and reports which rule a grant breaks.
type judge struct {
	grants []*account
	asked  map[ContainerKey]sighting // requests that the leader has seen
	began  time.Time                 // when the leader began
}

// account is the true state of a grant, whatever a leader knows about it.
type account struct {
	Grant
	at                  time.Time // by the clock of the current leader
	restarted, refunded bool
	ended               bool
	uncounted           bool // it ended when another leader began, whose clock differs
}

func (j *judge) each(is func(*account) bool, do func(*account)) {
	for _, a := range j.grants {
		if is(a) {
			do(a)
		}
	}
}

func (j *judge) count(is func(*account) bool) (n int) {
	j.each(is, func(*account) { n++ })
	return n
}

func (j *judge) restarted(key ContainerKey) {
	j.each(func(a *account) bool { return a.ID.ContainerKey == key && !a.refunded }, func(a *account) { a.restarted = true })
}

func (j *judge) ready(podUID string) {
	j.each(func(a *account) bool { return a.ID.PodUID == podUID && a.restarted }, func(a *account) { a.ended = true })
}

func (j *judge) gone(podUID string) {
	j.each(func(a *account) bool { return a.ID.PodUID == podUID }, func(a *account) { a.ended = true })
}

func (j *judge) ended(id GrantID) {
	j.each(func(a *account) bool { return a.ID == id && !a.restarted }, func(a *account) { a.ended, a.refunded = true, true })
}

// shift moves the times of grants to the clock of a new leader, which differs by offset.
func (j *judge) shift(offset time.Duration) {
	j.asked = map[ContainerKey]sighting{}
	for _, a := range j.grants {
		a.at = a.at.Add(offset)
		a.uncounted = a.uncounted || a.ended && offset != 0
	}
}

// expire ends restarts that have been in progress for ten minutes, and restarts that another mode has simulated.
func (j *judge) expire(now time.Time, mode Mode) {
	j.each(func(a *account) bool { return !a.ended }, func(a *account) {
		if now.Sub(a.at) >= 10*time.Minute || a.DryRun && mode != DryRun {
			a.ended, a.refunded = true, !a.restarted
		}
	})
}

// check returns an error that names the rule which a Result of Decide breaks.
func (j *judge) check(now time.Time, in Input, r Result) error {
	j.expire(now, in.Settings.Mode)
	if len(r.Decisions) != len(in.Requests) {
		return fmt.Errorf("%d decisions on %d requests", len(r.Decisions), len(in.Requests))
	}
	open, alone := j.breaker(now, in)
	if r.Breaker.Open != open || (r.Breaker.Alone.Held > 0) != (alone != "") || r.Breaker.Alone.Name != alone {
		return fmt.Errorf("the breaker is %+v, want open: %t, for %q alone", r.Breaker, open, alone)
	}
	for _, d := range r.Decisions {
		if d.Reason != ReasonGranted {
			continue
		}
		if open || alone == d.Request.Workload.Namespace {
			return fmt.Errorf("grant while the breaker is open: %+v", *d.Grant)
		}
		if err := j.checkGrant(now, in, *d.Grant); err != nil {
			return fmt.Errorf("%w: grant %+v", err, *d.Grant)
		}
		// The next restart of a container replaces its previous one.
		j.each(func(a *account) bool { return a.ID.ContainerKey == d.Grant.ID.ContainerKey }, func(a *account) { a.ended = true })
		j.grants = append(j.grants, &account{Grant: *d.Grant, at: now})
	}
	return j.checkShares(now, in, r)
}

// checkShares checks that namespaces share a common limit, and that a restart is held only if the limit is used up. It
// checks nothing in a leader's first minute, since restored grants count from its start.
func (j *judge) checkShares(now time.Time, in Input, r Result) error {
	if now.Sub(j.began) < time.Minute {
		return nil
	}
	minute, total := map[string]int{}, 0
	j.each(func(a *account) bool { return j.counts(now, in, a) }, func(a *account) {
		minute[a.Workload.Namespace]++
		total++
	})
	most := 0 // maximum of a namespace that was granted a restart now
	for _, d := range r.Decisions {
		if d.Reason == ReasonGranted {
			most = max(most, minute[d.Request.Workload.Namespace])
		}
	}
	for _, d := range r.Decisions {
		if d.Reason != ReasonGlobalLimit {
			continue
		}
		if total < in.Settings.PerMinute {
			return fmt.Errorf("held by perMinute with %d of %d granted: %+v", total, in.Settings.PerMinute, d)
		}
		if own := minute[d.Request.Workload.Namespace]; most > own+1 {
			return fmt.Errorf("%s has less than its share: %d, and another namespace that was granted something has %d", d.Request.Workload.Namespace, own, most)
		}
	}
	return nil
}

// breaker returns whether it is open for all namespaces, and for which single namespace it is open.
func (j *judge) breaker(now time.Time, in Input) (open bool, alone string) {
	for _, request := range in.Requests {
		j.asked[request.ContainerKey] = sighting{request.Workload, now}
	}
	held, byNamespace, workloads, namespaces := 0, map[string]int{}, map[WorkloadID]bool{}, map[string]bool{}
	for key, s := range j.asked {
		if _, pod := in.find(s.workload, key.PodUID); pod != nil && now.Sub(s.at) < time.Minute {
			held++
			byNamespace[s.workload.Namespace]++
			workloads[s.workload] = true
		}
	}
	for id := range in.Workloads {
		namespaces[id.Namespace] = true
	}
	limits := limitsOf(in)
	half := in.Guarded * limits.Percent // half of the needed number, times 200
	if in.Settings.Mode == Off || len(workloads) < limits.Workloads || held*200 < 2*half {
		return false, ""
	}
	counted := 0
	for namespace, n := range byNamespace {
		counted += min(n*200, half)
		if n*200 > half && workloadsOf(workloads, namespace) >= limits.Workloads {
			alone = namespace
		}
	}
	if counted >= 2*half || alone != "" && len(namespaces) == 1 {
		return true, ""
	}
	return false, alone
}

func limitsOf(in Input) BreakerLimits {
	if in.Settings.Breaker == (BreakerLimits{}) {
		return BreakerLimits{3, 30}
	}
	return in.Settings.Breaker
}

func workloadsOf(all map[WorkloadID]bool, namespace string) (n int) {
	for id := range all {
		if id.Namespace == namespace {
			n++
		}
	}
	return n
}

// counts reports whether a grant counts for the limits of the minute that ends now.
func (j *judge) counts(now time.Time, in Input, a *account) bool {
	return !a.refunded && !a.uncounted && (!a.DryRun || in.Settings.Mode == DryRun) && now.Sub(a.at) < time.Minute
}

func (j *judge) checkGrant(now time.Time, in Input, g Grant) error {
	of := in.Workloads[g.Workload]
	pod := of.Pods[g.ID.PodUID]
	budget := budgetOf(g.Workload, of)
	others := func(a *account) bool { return !a.ended && a.ID.ContainerKey != g.ID.ContainerKey }
	unavailable := max(of.Replicas-j.available(of), 0)
	switch {
	case in.Settings.Mode == Off || pod.Suspended:
		return fmt.Errorf("not asked for in mode %q, suspended %t", in.Settings.Mode, pod.Suspended)
	case j.count(func(a *account) bool { return others(a) && a.Workload == g.Workload }) >= budget:
		return fmt.Errorf("more than %d in progress", budget)
	case j.count(func(a *account) bool { return others(a) && a.ID.PodUID == g.ID.PodUID }) > 0:
		return errors.New("two containers of a pod at once")
	case j.isAvailable(pod) && unavailable >= budget:
		return fmt.Errorf("%d are unavailable, and the pod is Ready: more than %d", unavailable, budget)
	}
	if err := j.checkMinute(now, in, of, pod); err != nil {
		return err
	}
	if j.count(func(a *account) bool { return a.ID == g.ID }) > 0 {
		return errors.New("second one of its name")
	}
	return nil
}

// checkMinute checks the limits of the minute that ends with one more grant now.
func (j *judge) checkMinute(now time.Time, in Input, of *Workload, pod *Pod) error {
	minute := func(is func(*account) bool) int {
		return 1 + j.count(func(a *account) bool { return j.counts(now, in, a) && is(a) })
	}
	exceeds := func(limit int, is func(*account) bool) bool { return limit > 0 && minute(is) > limit }
	if limit := in.Settings.PerMinute; exceeds(limit, func(*account) bool { return true }) {
		return fmt.Errorf("more than %d within a minute", limit)
	}
	if limit := in.Settings.PerNodePerMinute; exceeds(limit, func(a *account) bool { return a.Node == pod.Node }) {
		return fmt.Errorf("more than %d within a minute on %s", limit, pod.Node)
	}
	for _, b := range of.Budgets {
		if exceeds(b.PerMinute, func(a *account) bool {
			for _, other := range in.Workloads[a.Workload].Budgets {
				if other.Name == b.Name {
					return true
				}
			}
			return false
		}) {
			return fmt.Errorf("more than %d within a minute of RestartBudget %s", b.PerMinute, b.Name)
		}
	}
	return nil
}

func (j *judge) isAvailable(pod *Pod) bool {
	return pod.Ready && !pod.Terminating && j.count(func(a *account) bool { return !a.ended && a.ID.PodUID == pod.Name }) == 0
}

func (j *judge) available(of *Workload) (n int) {
	for _, pod := range of.Pods {
		if j.isAvailable(pod) {
			n++
		}
	}
	return n
}

// budgetOf returns the limit of the budgets that a world has.
func budgetOf(id WorkloadID, of *Workload) int {
	switch {
	case len(of.Budgets) > 0:
		return of.Budgets[0].MaxUnavailable.Value
	case id.Kind == "Pod":
		return 1
	case len(of.Disruption) > 0:
		return of.Disruption[0].MaxUnavailable.Value
	}
	return max(of.Replicas/4, 1)
}
