package restarts

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// planEvery is the minimum time between two computations of policies.
const planEvery = time.Second

// runPolicies updates the policies of all pods until ctx ends, and then returns nil.
func (r *Restarts) runPolicies(ctx context.Context) error {
	var wrong wrongAnnotations
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.plan:
		}
		if r.missing() == nil {
			r.setPolicies(r.cluster.policies(*r.settings.Load()))
			for _, w := range wrong.fresh(r.cluster) {
				r.o.Logger.WarnContext(ctx, "ignoring an invalid annotation of a running pod",
					"namespace", w.pod.Namespace, "pod", w.pod.Name, "err", w.err())
			}
		}
		_ = run.Sleep(ctx, planEvery) // the loop checks ctx
	}
}

// setPolicies replaces the policies, and wakes the sessions of agents whose policy differs.
func (r *Restarts) setPolicies(now map[watch.Key]*agentv1.Restarts) {
	r.mu.Lock()
	before := r.policies
	r.policies = now
	r.mu.Unlock()
	for pod, policy := range now {
		if !proto.Equal(before[pod], policy) {
			r.tell(pod)
		}
	}
	for pod := range before {
		if _, is := now[pod]; !is {
			r.tell(pod)
		}
	}
	if before == nil { // no agent had a policy before
		r.mu.Lock()
		var pods []watch.Key
		for pod := range r.granted {
			pods = append(pods, pod)
		}
		r.mu.Unlock()
		for _, pod := range pods {
			r.tell(pod)
		}
	}
}

// policies returns the policies of guarded pods, without grants. It omits pods with the default policy, which holds
// failures even without a session.
func (c *cluster) policies(s restartbudget.Settings) map[watch.Key]*agentv1.Restarts {
	all, away := map[watch.Key]*agentv1.Restarts{}, c.newAbsence()
	for _, key := range c.pods.Keys() {
		p := c.pods.Get(key)
		if !p.guarded() {
			continue
		}
		policy := &agentv1.Restarts{Mode: p.mode(s), WhenAway: away.of(key, p)}
		if policy.GetMode() != agentv1.Restarts_HOLD || policy.GetWhenAway().GetPolicy() != agentv1.WhenAway_HOLD {
			all[key] = policy
		}
	}
	return all
}

// mode returns the mode of a pod. A mode that passes failures to the kubelet takes precedence.
func (p *pod) mode(s restartbudget.Settings) agentv1.Restarts_Mode {
	switch {
	case s.Mode == restartbudget.Off, s.Mode == restartbudget.DryRun:
		return agentv1.Restarts_NATIVE
	case p.Native:
		return agentv1.Restarts_NATIVE
	case p.Suspended:
		return agentv1.Restarts_SUSPENDED
	}
	return agentv1.Restarts_HOLD
}
