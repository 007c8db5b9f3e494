package restarts

import (
	"context"
	"time"

	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// Policy is what holds for a pod until it changes. The zero Policy is to hold failures back, also while the control plane is away.
type Policy struct {
	Mode Mode
	Away Away
}

// Mode says what becomes of failures without a grant.
type Mode int

// Modes.
const (
	// Hold holds them back.
	Hold Mode = iota
	// Native tells the kubelet.
	Native
	// Suspended holds them back, also those with a grant.
	Suspended
)

// Away says what becomes of failures while the agent has no session. The zero Away holds them back.
type Away struct {
	Policy AwayPolicy
	// After is how long the session must have been away.
	After time.Duration
	// Turn is that of the pod, from 0, of so many Turns, each of which lasts TurnTime. For AwaySlots alone.
	Turn, Turns int
	TurnTime    time.Duration
}

// AwayPolicy is a RestartBudget's whenAway.
type AwayPolicy int

// Policies.
const (
	// AwayHold holds failures back.
	AwayHold AwayPolicy = iota
	// AwaySlots tells the kubelet in the pod's turn.
	AwaySlots
	// AwayNative tells the kubelet.
	AwayNative
)

// planEvery is how often policies are made anew at most.
const planEvery = time.Second

// runPolicies keeps the policies of all pods until ctx ends, and then returns nil.
func (r *Restarts) runPolicies(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.plan:
		}
		if r.missing() == nil {
			r.setPolicies(r.cluster.policies(*r.settings.Load()))
		}
		pause := time.NewTimer(planEvery)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// setPolicies has agents told whose policy differs.
func (r *Restarts) setPolicies(now map[watch.Key]Policy) {
	r.mu.Lock()
	before := r.policies
	r.policies = now
	r.mu.Unlock()
	for pod, policy := range now {
		if before[pod] != policy {
			r.o.Tell(pod)
		}
	}
	for pod := range before {
		if _, is := now[pod]; !is {
			r.o.Tell(pod)
		}
	}
	if before == nil { // nothing was told before
		r.mu.Lock()
		var pods []watch.Key
		for pod := range r.ofPod {
			pods = append(pods, pod)
		}
		r.mu.Unlock()
		for _, pod := range pods {
			r.o.Tell(pod)
		}
	}
}

// policies returns those of guarded pods that have another one than the zero Policy.
func (c *cluster) policies(s restartbudget.Settings) map[watch.Key]Policy {
	all := map[watch.Key]Policy{}
	for _, key := range c.pods.Keys() {
		p := c.pods.Get(key)
		if !p.guarded() {
			continue
		}
		if policy := (Policy{Mode: p.mode(s)}); policy != (Policy{}) {
			all[key] = policy
		}
	}
	return all
}

// mode returns that of a pod: what says that nothing may hold a failure back comes first.
func (p *pod) mode(s restartbudget.Settings) Mode {
	switch {
	case s.Mode == restartbudget.Off, s.Mode == restartbudget.DryRun:
		return Native
	case p.Suspended:
		return Suspended
	}
	return Hold
}
