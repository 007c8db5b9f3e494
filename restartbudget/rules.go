package restartbudget

import "time"

// round is the state during one Decide: counters, which each grant updates.
type round struct {
	*State

	now     time.Time
	in      *Input
	breaker map[string]string // why it is open, by namespace; "" if it is closed
	// Grants of the last minute: all, by namespace, by node and by RestartBudget.
	granted     int
	byNamespace map[string]int
	byNode      map[string]int
	byBudget    map[string]int
	// Restarts in progress by workload, and the UIDs of their pods.
	inProgress map[WorkloadID]int
	restarting map[string]bool
	workloads  map[WorkloadID]*tally
}

// tally has the counters of a workload with requests.
type tally struct {
	allowance

	// available is the number of pods that are Ready, not terminating, and without a restart in progress.
	available int
}

func (s *State) newRound(now time.Time, in Input, b Breaker) *round {
	r := &round{
		State: s, now: now, in: &in, breaker: map[string]string{}, byNamespace: map[string]int{}, byNode: map[string]int{},
		byBudget:   map[string]int{},
		inProgress: map[WorkloadID]int{}, restarting: map[string]bool{}, workloads: map[WorkloadID]*tally{},
	}
	for id := range in.Workloads {
		if _, is := r.breaker[id.Namespace]; !is {
			r.breaker[id.Namespace] = b.Why(id.Namespace)
		}
	}
	for _, rec := range s.recent {
		if !rec.DryRun || in.Settings.Mode == DryRun {
			r.countGranted(rec.Workload, rec.Node)
		}
	}
	for key, rec := range s.last {
		if rec.inProgress() {
			r.inProgress[rec.Workload]++
			r.restarting[key.PodUID] = true
		}
	}
	return r
}

func (r *round) countGranted(workload WorkloadID, node string) {
	r.granted++
	r.byNamespace[workload.Namespace]++
	r.byNode[node]++
	if w := r.in.Workloads[workload]; w != nil {
		for _, b := range w.Budgets {
			r.byBudget[b.Name]++
		}
	}
}

// rules are evaluated in order: the first one that returns a reason decides. If none does, the restart is granted.
// Limits on concurrent restarts apply to pods in any state. So they come before the rules of the workload, which exempt
// pods that are not Ready.
var rules = []func(*round, *candidate) Cause{
	(*round).off, (*round).request, (*round).annotated, (*round).blacklisted, (*round).grantedBefore,
	(*round).unread, (*round).frozen, (*round).breakerOpen,
	(*round).perMinute, (*round).perNode, (*round).perBudget,
	(*round).unhelpfulRestarts, (*round).restartsInProgress, (*round).unavailable,
	(*round).podBusy,
}

func (r *round) decide(c *candidate) Decision {
	d := Decision{Request: c.Request, Verdict: Held, DryRun: r.in.Settings.Mode == DryRun}
	for _, rule := range rules {
		if d.Cause = rule(r, c); d.Reason == "" {
			continue
		}
		switch d.Reason {
		case ReasonOff, ReasonNative:
			d.Verdict = Native
		case ReasonGrantedBefore:
			grant := r.last[c.ContainerKey].Grant
			d.Verdict, d.Grant = Granted, &grant
		}
		return d
	}
	d.Verdict, d.Cause, d.Grant = Granted, Cause{Reason: ReasonGranted}, r.grant(c)
	return d
}

// grant makes a grant, and updates the counters. No other code makes grants.
func (r *round) grant(c *candidate) *Grant {
	before := r.last[c.ContainerKey]
	rec := &record{at: r.now, Grant: Grant{
		ID: GrantID{ContainerKey: c.ContainerKey, Restarts: c.Restarts}, Workload: c.Workload, Node: c.pod.Node,
		Template: c.pod.Template,
		DryRun:   r.in.Settings.Mode == DryRun, Granted: r.now,
	}}
	if before != nil && before.ID.Restarts == c.Restarts {
		rec.ID.Try = before.ID.Try + 1
	}
	if r.isAvailable(c.PodUID, c.pod) {
		r.tally(c).available--
	}
	if !before.inProgress() {
		r.inProgress[c.Workload]++
	}
	r.restarting[c.PodUID] = true
	r.countGranted(c.Workload, rec.Node)
	r.last[c.ContainerKey] = rec
	r.recent = append(r.recent, rec)
	r.serve(rec)
	grant := rec.Grant
	return &grant
}

// tally returns the tally of the candidate's workload.
func (r *round) tally(c *candidate) *tally {
	if t := r.workloads[c.Workload]; t != nil {
		return t
	}
	t := &tally{allowance: c.workload.maxUnavailable(c.Workload)}
	for uid, pod := range c.workload.Pods {
		if r.isAvailable(uid, pod) {
			t.available++
		}
	}
	r.workloads[c.Workload] = t
	return t
}

func (r *round) isAvailable(uid string, pod *Pod) bool {
	return pod.Ready && !pod.Terminating && !r.restarting[uid]
}

func (r *round) off(*candidate) Cause {
	if r.in.Settings.Mode == Off {
		return Cause{Reason: ReasonOff}
	}
	return Cause{}
}

func (r *round) request(c *candidate) Cause {
	switch {
	case !c.known():
		return Cause{Reason: ReasonUnknown}
	case !c.current():
		return Cause{Reason: ReasonStale, Count: c.Restarts, Limit: c.container.Restarts}
	}
	return Cause{}
}

func (r *round) annotated(c *candidate) Cause {
	switch {
	case c.pod.Native:
		return Cause{Reason: ReasonNative}
	case c.pod.Suspended:
		return Cause{Reason: ReasonSuspended}
	}
	return Cause{}
}

func (r *round) blacklisted(c *candidate) Cause {
	if match := r.in.Settings.Blacklist.match(c.Workload, c.container.Image); match != "" {
		return Cause{Reason: ReasonBlacklisted, Source: match}
	}
	return Cause{}
}

// grantedBefore returns the container's existing grant, which only the settings of an operator overrule.
func (r *round) grantedBefore(c *candidate) Cause {
	if rec := r.last[c.ContainerKey]; rec.inProgress() && rec.Outcome == Open && rec.ID.Restarts == c.Restarts {
		return Cause{Reason: ReasonGrantedBefore}
	}
	return Cause{}
}

func (r *round) unread(*candidate) Cause {
	if r.in.Unread != "" {
		return Cause{Reason: ReasonUnread, Source: r.in.Unread}
	}
	return Cause{}
}

func (r *round) frozen(*candidate) Cause {
	if r.in.Frozen != "" {
		return Cause{Reason: ReasonFrozen, Source: r.in.Frozen}
	}
	return Cause{}
}

func (r *round) breakerOpen(c *candidate) Cause {
	if why := r.breaker[c.Workload.Namespace]; why != "" {
		return Cause{Reason: ReasonBreaker, Source: why}
	}
	return Cause{}
}

func (r *round) perMinute(*candidate) Cause {
	if limit := r.in.Settings.PerMinute; limit > 0 && r.granted >= limit {
		return Cause{ReasonGlobalLimit, r.granted, limit, "perMinute"}
	}
	return Cause{}
}

func (r *round) perNode(c *candidate) Cause {
	if limit, n := r.in.Settings.PerNodePerMinute, r.byNode[c.pod.Node]; limit > 0 && n >= limit {
		return Cause{ReasonNodeLimit, n, limit, "perNodePerMinute of " + c.pod.Node}
	}
	return Cause{}
}

func (r *round) perBudget(c *candidate) Cause {
	for _, b := range c.workload.Budgets {
		if n := r.byBudget[b.Name]; b.PerMinute > 0 && n >= b.PerMinute {
			return Cause{ReasonBudgetLimit, n, b.PerMinute, "RestartBudget " + b.Name}
		}
	}
	return Cause{}
}

func (r *round) unhelpfulRestarts(c *candidate) Cause {
	if n := r.unhelpful[templateKey{c.Workload, c.pod.Template}]; n >= maxUnhelpful {
		return Cause{Reason: ReasonUnhelpful, Count: n, Limit: maxUnhelpful}
	}
	return Cause{}
}

// restartsInProgress limits restarts of all pods, whether Ready or not. A container with a restart in progress is
// already counted: it must wait only while it may still be starting.
func (r *round) restartsInProgress(c *candidate) Cause {
	t, n := r.tally(c), r.inProgress[c.Workload]
	starting := false
	if own := r.last[c.ContainerKey]; own.inProgress() {
		starting = own.Outcome == Spent && (own.isStarting(r.now, c) || r.outdated(r.now, own, c.pod))
		n--
	}
	switch {
	case starting:
		return Cause{ReasonInProgress, n + 1, t.pods, t.source}
	case t.pods == 0:
		return Cause{ReasonNoneAllowed, n, 0, t.source}
	case n >= t.pods:
		return Cause{ReasonInProgress, n, t.pods, t.source}
	}
	return Cause{}
}

// unavailable limits restarts of available pods only, since restarting another pod makes no more pods unavailable. Like
// a PodDisruptionBudget, it counts how many pods are missing from the desired number: an additional pod that is not
// Ready, as in a rollout, is not missing.
func (r *round) unavailable(c *candidate) Cause {
	if !r.isAvailable(c.PodUID, c.pod) {
		return Cause{}
	}
	t := r.tally(c)
	if n := max(c.workload.Replicas-t.available, 0); n >= t.pods {
		return Cause{ReasonUnavailable, n, t.pods, t.source}
	}
	return Cause{}
}

func (r *round) podBusy(c *candidate) Cause {
	for i := range c.pod.Containers {
		name := c.pod.Containers[i].Name
		if name != c.Name && r.last[ContainerKey{c.PodUID, name}].inProgress() {
			return Cause{Reason: ReasonPodBusy, Source: name}
		}
	}
	return Cause{}
}
