package restarts

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/podcause"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// Reasons of events.
const (
	eventGranted       = podcause.RestartGranted
	eventHeld          = podcause.RestartHeld
	eventUnhelpful     = "RestartsUnhelpful"
	eventInvalidBudget = "RestartBudgetInvalid"
	eventBreakerOpen   = "RestartBreakerOpened"
	eventBreakerClosed = "RestartBreakerClosed"
	actionRestart      = "Restart"
)

// report records events and logs about decisions, once per change.
type report struct {
	*Restarts

	told    map[restartbudget.ContainerKey]*told
	waiting map[template]bool // with an event that restarts do not help
	open    bool              // the circuit breaker of the whole mesh
	alone   string            // the namespace whose own circuit breaker is open
}

// told is what was reported about a failing container.
type told struct {
	verdict restartbudget.Verdict
	reason  restartbudget.Reason
	held    []restartbudget.Reason // reasons with an event
}

// template identifies the pods of a workload with the same template.
type template struct {
	workload restartbudget.WorkloadID
	hash     string
}

func newReport(r *Restarts) *report {
	return &report{Restarts: r, told: map[restartbudget.ContainerKey]*told{}, waiting: map[template]bool{}}
}

// decided reports the changes of a round.
func (r *report) decided(ctx context.Context, in restartbudget.Input, pods map[string]watch.Key,
	result restartbudget.Result, state *restartbudget.State) {
	r.breaker(ctx, result.Breaker)
	asking := make(map[restartbudget.ContainerKey]*told, len(result.Decisions))
	for i := range result.Decisions {
		d := &result.Decisions[i]
		t := r.told[d.Request.ContainerKey]
		if t == nil {
			t = &told{}
		}
		asking[d.Request.ContainerKey] = t
		repeated := d.Reason == restartbudget.ReasonGrantedBefore && t.verdict == restartbudget.Granted
		if !repeated && (t.verdict != d.Verdict || t.reason != d.Reason) {
			t.verdict, t.reason = d.Verdict, d.Reason
			r.metrics.decisions.WithLabelValues(string(d.Verdict), string(d.Reason)).Inc()
		}
		if pod, is := pods[d.Request.PodUID]; is && holds(d) {
			r.held(pod, d, t)
		}
		if d.Reason == restartbudget.ReasonUnhelpful {
			r.unhelpful(in, pods, d)
		}
	}
	r.told = asking
	for t := range r.waiting {
		if !state.Unhelpful(t.workload, t.hash) {
			delete(r.waiting, t)
		}
	}
}

func (r *report) held(pod watch.Key, d *restartbudget.Decision, t *told) {
	if slices.Contains(t.held, d.Reason) {
		return
	}
	t.held = append(t.held, d.Reason)
	e := aboutContainer(pod, d.Request.ContainerKey)
	e.Reason, e.Action = eventHeld, camelCase(d.Reason) // the action makes each reason a series of its own
	e.Note = podcause.Held(d.Request.Name, d.String())
	r.o.Record(e)
}

// granted reports a grant whose object now exists.
func (r *report) granted(c creation) {
	e := aboutContainer(c.pod, c.grant.ID.ContainerKey)
	e.Reason, e.Action, e.Normal = eventGranted, actionRestart, true
	e.Note = fmt.Sprintf("container %s may restart: its liveness probe fails, and it has restarted %d times",
		c.grant.ID.Name, c.grant.ID.Restarts)
	if c.grant.DryRun {
		e.Note = "dry run: " + e.Note
	}
	r.o.Record(e)
}

// unhelpful reports that a workload waits, in an event about the object that an operator can fix.
func (r *report) unhelpful(in restartbudget.Input, pods map[string]watch.Key, d *restartbudget.Decision) {
	w := in.Workloads[d.Request.Workload]
	p := r.cluster.pods.Get(pods[d.Request.PodUID])
	if w == nil || p == nil || w.Pods[d.Request.PodUID] == nil {
		return
	}
	t := template{d.Request.Workload, w.Pods[d.Request.PodUID].Template}
	if r.waiting[t] {
		return
	}
	r.waiting[t] = true
	e := r.cluster.aboutWorkload(d.Request.Workload, p)
	e.Reason, e.Action = eventUnhelpful, actionRestart
	e.Note = fmt.Sprintf("%d restarts in a row failed again before their liveness probe had passed: no container restarts until the pod template changes, or sondectl restarts release %s is run", d.Count, d.Request.Workload)
	r.o.Record(e)
}

// breaker reports that the circuit breaker has opened or closed. The event is about the control plane's Lease, or about
// the affected namespace. Held pods have events of their own.
func (r *report) breaker(ctx context.Context, b restartbudget.Breaker) {
	if !b.Changed {
		return
	}
	if b.Open != r.open {
		e := events.Event{Kind: "Lease", APIVersion: "coordination.k8s.io/v1", Namespace: r.o.Lease.Namespace,
			Name: r.o.Lease.Name, Action: actionRestart}
		if r.open = b.Open; b.Open {
			r.o.Logger.WarnContext(ctx, "circuit breaker open, no restarts are granted",
				"containers", b.Held, "of", b.Guarded, "workloads", b.Workloads)
			e.Reason = eventBreakerOpen
			e.Note = fmt.Sprintf("no restart is granted: within a minute the liveness probes of %d of %d guarded containers failed, of %d workloads", b.Held, b.Guarded, b.Workloads)
		} else {
			r.o.Logger.InfoContext(ctx, "circuit breaker closed, restarts are granted again", "exceptNamespace", b.Alone.Name)
			e.Reason, e.Note, e.Normal = eventBreakerClosed, "restarts are granted again", true
		}
		r.o.Record(e)
	}
	before, now := r.alone, b.Alone
	if r.alone = now.Name; before == now.Name {
		return
	}
	if before != "" && !b.Open {
		r.o.Logger.InfoContext(ctx, "circuit breaker of a namespace closed, restarts granted again", "namespace", before)
		e := aboutNamespace(before)
		e.Reason, e.Note, e.Normal = eventBreakerClosed, "restarts are granted again in the namespace", true
		r.o.Record(e)
	}
	if now.Held > 0 {
		r.o.Logger.WarnContext(ctx, "circuit breaker of a namespace open, none of its restarts are granted",
			"namespace", now.Name, "containers", now.Held, "of", b.Guarded, "workloads", now.Workloads)
		e := aboutNamespace(now.Name)
		e.Reason, e.Note = eventBreakerOpen, "no restart is granted in the namespace: "+b.Why(now.Name)
		r.o.Record(e)
	}
}

// aboutNamespace returns an event about a namespace, written into that namespace.
func aboutNamespace(name string) events.Event {
	return events.Event{Kind: "Namespace", APIVersion: "v1", Namespace: name, Name: name, Action: actionRestart}
}

// aboutContainer returns an event about a container of a pod.
func aboutContainer(pod watch.Key, c restartbudget.ContainerKey) events.Event {
	return events.Event{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(c.PodUID),
		FieldPath: "spec.containers{" + c.Name + "}",
	}
}
