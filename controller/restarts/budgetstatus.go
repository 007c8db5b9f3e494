package restarts

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/cut"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/restartbudget"
)

const (
	// statusEvery is the minimum time between two writes of a RestartBudget's status.
	statusEvery = 3 * time.Second
	// maxNamed is the maximum number of other budgets in a message.
	maxNamed = 10
	// maxMessage is the maximum length of a condition's message in the API (metav1.Condition).
	maxMessage = 32768
)

// budgetStatus writes the status of RestartBudgets in its own goroutine, so that a slow API server does not delay
// decisions.
type budgetStatus struct {
	*Restarts
	progress   atomic.Pointer[progress] // after the last decisions, nil before the first
	complained time.Time                // when a failed write was last logged
}

// progress has the numbers of restarts in progress and held restarts, by pod UID.
type progress struct{ inProgress, held map[string]int }

func progressOf(s *restartbudget.State, r restartbudget.Result) *progress {
	p := &progress{inProgress: s.InProgress(), held: map[string]int{}}
	for i := range r.Decisions {
		if d := &r.Decisions[i]; d.Verdict == restartbudget.Held {
			p.held[d.Request.PodUID]++
		}
	}
	return p
}

func newBudgetStatus(r *Restarts) *budgetStatus { return &budgetStatus{Restarts: r} }

// run writes changed statuses until ctx ends.
func (s *budgetStatus) run(ctx context.Context) {
	for range run.Ticks(ctx, statusEvery) {
		if p := s.progress.Load(); p != nil {
			s.write(ctx, p, time.Now())
		}
	}
}

// maxInvalid is the maximum number of events about invalid RestartBudgets per pass, since a namespace may have any
// number of them. Later passes record the rest.
const maxInvalid = 20

// write writes each changed status. A failed write is retried in the next pass, since the status still differs.
func (s *budgetStatus) write(ctx context.Context, p *progress, now time.Time) {
	invalid := 0
	for key, b := range s.cluster.budgetStatuses(p, now) {
		if reflect.DeepEqual(b.is, b.want) {
			continue
		}
		problem := b.newProblem()
		if problem != "" {
			if invalid++; invalid > maxInvalid {
				continue
			}
		}
		err := s.patch(ctx, key, b.want)
		switch {
		case ctx.Err() != nil:
			return
		case apierrors.IsNotFound(err):
			continue
		case problem != "":
			// Record the event even if an older API server rejects the status, because its schema rejects the object.
			s.o.Record(invalidEvent(key, problem))
		}
		if err == nil {
			continue
		}
		if now.Sub(s.complained) >= complainEvery {
			s.complained = now
			s.o.Logger.WarnContext(ctx, "failed to write the status of a RestartBudget, retrying",
				"namespace", key.Namespace, "name", key.Name, "err", err)
		}
		if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
			return // one attempt per pass, since the API server does not answer
		}
	}
}

// newProblem returns why a budget cannot be used, "" if it can be used or if its status already shows the problem.
func (p *statusPair) newProblem() string {
	want := meta.FindStatusCondition(p.want.Conditions, v1alpha1.ConditionAccepted)
	is := meta.FindStatusCondition(p.is.Conditions, v1alpha1.ConditionAccepted)
	if want.Reason != v1alpha1.ReasonInvalid || is != nil && is.Reason == want.Reason && is.Message == want.Message {
		return ""
	}
	return want.Message
}

func invalidEvent(key watch.Key, problem string) events.Event {
	return events.Event{
		Kind: "RestartBudget", APIVersion: v1alpha1.GroupVersion.String(), Namespace: key.Namespace, Name: key.Name,
		Reason: eventInvalidBudget, Action: actionRestart, Note: problem,
	}
}

func (s *budgetStatus) patch(ctx context.Context, key watch.Key, status v1alpha1.RestartBudgetStatus) error {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	return s.o.Status.Patch(types.MergePatchType).Resource(budgetResource).Namespace(key.Namespace).Name(key.Name).
		SubResource("status").Body(patch).Do(ctx).Error()
}

// statusPair has the current and the wanted status of a RestartBudget.
type statusPair struct{ is, want v1alpha1.RestartBudgetStatus }

// budgetStatuses returns the statuses of all RestartBudgets.
func (c *cluster) budgetStatuses(p *progress, now time.Time) map[watch.Key]statusPair {
	if c.budgets.Len() == 0 {
		return nil
	}
	budgets := c.selectBudgets()
	counts, workloads := map[*budget]*v1alpha1.RestartBudgetStatus{}, map[restartbudget.WorkloadID]bool{}
	for _, in := range budgets.namespaces {
		for _, b := range in.objects {
			counts[b] = &v1alpha1.RestartBudgetStatus{ObservedGeneration: b.generation}
		}
	}
	for _, key := range c.pods.Keys() {
		pod := c.pods.Get(key)
		if !pod.guarded() {
			continue
		}
		workloads[pod.workload] = true
		for _, b := range budgets.of(key.Namespace, pod) {
			counts[b].Matched++
			counts[b].InProgress += int32(p.inProgress[pod.uid])
			counts[b].Held += int32(p.held[pod.uid])
		}
	}
	others, statuses := overlapping(budgets, workloads), map[watch.Key]statusPair{}
	for namespace, in := range budgets.namespaces {
		for _, b := range in.objects {
			want := *counts[b]
			want.Conditions = []metav1.Condition{b.accepted(want.Matched, others[b], now)}
			statuses[watch.Key{Namespace: namespace, Name: b.name}] = statusPair{b.status, want}
		}
		for _, b := range budgets.beyond[namespace] {
			want := v1alpha1.RestartBudgetStatus{ObservedGeneration: b.generation}
			want.Conditions = []metav1.Condition{b.holdingAll().accepted(0, nil, now)}
			statuses[watch.Key{Namespace: namespace, Name: b.name}] = statusPair{b.status, want}
		}
	}
	return statuses
}

// overlapping returns, for each budget, the names of other budgets for the same workloads: at most maxNamed, and one
// more if there are more.
func overlapping(budgets countedBudgets, workloads map[restartbudget.WorkloadID]bool) map[*budget][]string {
	others := map[*budget][]string{}
	order := slices.SortedFunc(maps.Keys(workloads), func(a, b restartbudget.WorkloadID) int {
		return cmp.Compare(a.String(), b.String())
	})
	for _, id := range order {
		all := budgets.ofWorkload(id)
		for _, b := range all {
			for _, other := range all {
				if len(others[b]) > maxNamed {
					break
				}
				if other != b && !slices.Contains(others[b], other.name) {
					others[b] = append(others[b], other.name)
				}
			}
		}
	}
	return others
}

// accepted returns the Accepted condition. others are the names of other budgets for the same workloads.
func (b *budget) accepted(matched int32, others []string, now time.Time) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted,
		ObservedGeneration: b.generation,
		LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	}
	switch {
	case b.problem != "":
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonInvalid
		c.Message = cut.Text("no pod that it selects restarts: "+strings.ReplaceAll(b.problem, "\n", "; "), maxMessage)
	case matched == 0:
		c.Reason, c.Message = v1alpha1.ReasonNoPods, "it selects no guarded pod"
	case len(others) > 0:
		c.Reason, c.Message = v1alpha1.ReasonOverlapping, "the strictest holds: pods of the same workloads are selected by "+
			named(others)
	}
	if is := meta.FindStatusCondition(b.status.Conditions, c.Type); is != nil && is.Status == c.Status {
		c.LastTransitionTime = is.LastTransitionTime
	}
	return c
}

// named joins the first maxNamed names.
func named(names []string) string {
	if len(names) > maxNamed {
		return strings.Join(names[:maxNamed], ", ") + " and others"
	}
	return strings.Join(names, ", ")
}
