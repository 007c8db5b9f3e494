package restarts

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/cut"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// budgetResource is the plural name of RestartBudgets.
const budgetResource = "restartbudgets"

// Bounds of nativeAfter.
const (
	minNativeAfter = time.Minute
	maxNativeAfter = 24 * time.Hour
)

// budget is the record of a RestartBudget.
type budget struct {
	restartbudget.Budget
	name     string // of the object
	selector *keptSelector
	// whenAway is the policy while the agent has no session, nativeAfter the delay of the policy native.
	whenAway    agentv1.WhenAway_Policy
	nativeAfter time.Duration
	// problem is why the budget cannot be used as written, "" if it can; tooLarge says that its size is the problem.
	problem    string
	tooLarge   bool
	created    time.Time
	generation int64
	status     v1alpha1.RestartBudgetStatus // only with the condition Accepted
}

// newBudgets returns the store of RestartBudgets. client is for group sonde.dev.
func newBudgets(client rest.Interface, changed func(), logger *slog.Logger) *watch.Store[*v1alpha1.RestartBudget,
	budget] {
	return watch.New(watch.Kind[*v1alpha1.RestartBudget, budget]{
		Client: client, Resource: budgetResource, New: &v1alpha1.RestartBudget{}, Synced: changed,
		Record: func(o *v1alpha1.RestartBudget) (budget, bool) { return readBudget(o), true },
		Changed: func(key watch.Key, before, now *budget) {
			if now != nil && now.problem != "" && (before == nil || before.problem != now.problem) {
				logger.Error("RestartBudget is invalid, holding restarts of its pods",
					"namespace", key.Namespace, "name", key.Name, "err", now.problem)
			}
			if before == nil || now == nil || !before.decidesAs(now) {
				changed()
			}
		},
	})
}

// readBudget reads a RestartBudget. An invalid one, which the CustomResourceDefinition should have rejected, allows no
// restart, since its limit is unknown. If its selector is unreadable, it covers all guarded pods of its namespace. The
// record has a bounded size.
func readBudget(o *v1alpha1.RestartBudget) budget {
	b := budget{name: o.Name, created: o.CreationTimestamp.Time, generation: o.Generation, status: keptStatus(&o.Status)}
	b.Name = o.Namespace + "/" + o.Name
	err := errors.Join(b.readSelector(o.Spec.Selector), b.readLimits(&o.Spec), b.readAway(&o.Spec))
	if err != nil {
		b.problem, b.tooLarge = cut.Marked(err.Error(), maxProblem), errors.Is(err, errTooLarge)
		b.Limit = noneAllowed(b.Name)
		b.PerMinute, b.whenAway, b.nativeAfter = 0, agentv1.WhenAway_HOLD, 0
	}
	return b
}

// maxProblem bounds a recorded problem, in bytes.
const maxProblem = 1024

// keptStatus returns the part of a status that is compared with the wanted status. It cuts messages, but never one that
// the leader has written.
func keptStatus(s *v1alpha1.RestartBudgetStatus) v1alpha1.RestartBudgetStatus {
	kept := *s
	kept.Conditions = nil
	if is := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionAccepted); is != nil {
		c := *is
		c.Message = cut.Text(c.Message, maxMessage)
		kept.Conditions = []metav1.Condition{c}
	}
	return kept
}

func (b *budget) readSelector(s *v1alpha1.PodSelector) error {
	b.selector = everything
	if s == nil {
		return errors.New("spec.selector: required, {} selects all pods")
	}
	selector, err := boundedSelector(selectorOf(s))
	if err != nil {
		return fmt.Errorf("spec.selector: %w", err)
	}
	b.selector = selector
	return nil
}

func (b *budget) readLimits(s *v1alpha1.RestartBudgetSpec) error {
	var errs []error
	amount := func(field string, v *intstr.IntOrString) *restartbudget.Amount {
		a := amountOf(v)
		if v != nil && (a == nil || a.Value < 0 || a.Percent && a.Value > 100) {
			errs = append(errs, fmt.Errorf(
				`spec.%s: %.80q: must be a number of pods, 0 or more, or a share from "0%%" to "100%%"`, field, v.String()))
		}
		return a
	}
	b.MaxUnavailable, b.MinAvailable = amount("maxUnavailable", s.MaxUnavailable), amount("minAvailable", s.MinAvailable)
	switch {
	case s.MaxUnavailable != nil && s.MinAvailable != nil:
		errs = append(errs, errors.New("spec: maxUnavailable and minAvailable: only one of them is allowed"))
	case s.MaxUnavailable == nil && s.MinAvailable == nil && s.PerMinute == nil && s.WhenAway == "":
		errs = append(errs, errors.New(
			"spec: at least one of maxUnavailable, minAvailable, perMinute and whenAway is required"))
	}
	if s.PerMinute != nil {
		if b.PerMinute = int(*s.PerMinute); b.PerMinute < 1 {
			errs = append(errs, fmt.Errorf("spec.perMinute: %d: must be 1 or more", b.PerMinute))
		}
	}
	return errors.Join(errs...)
}

func (b *budget) readAway(s *v1alpha1.RestartBudgetSpec) error {
	if s.WhenAway != v1alpha1.WhenAwayNative && s.NativeAfter != "" {
		return errors.New("spec.nativeAfter: allowed only with whenAway native")
	}
	switch s.WhenAway {
	case "", v1alpha1.WhenAwayHold:
		return nil
	case v1alpha1.WhenAwaySlots:
		b.whenAway = agentv1.WhenAway_SLOTS
		return nil
	case v1alpha1.WhenAwayNative:
		after, err := mesh.ParseDuration(s.NativeAfter)
		if err != nil || after.Std() < minNativeAfter || after.Std() > maxNativeAfter {
			return fmt.Errorf("spec.nativeAfter: %.80q: must be a duration from 1m to 24h", s.NativeAfter)
		}
		b.whenAway, b.nativeAfter = agentv1.WhenAway_NATIVE, after.Std()
		return nil
	}
	return fmt.Errorf("spec.whenAway: %.80q: must be %s, %s or %s",
		s.WhenAway, v1alpha1.WhenAwayHold, v1alpha1.WhenAwaySlots, v1alpha1.WhenAwayNative)
}

// decidesAs reports whether two budgets have the same effect: they differ at most in their status.
func (b *budget) decidesAs(other *budget) bool {
	alike := *other
	alike.status = b.status
	return reflect.DeepEqual(*b, alike)
}

// limitsOf returns the limits of budgets.
func limitsOf(all []*budget) []restartbudget.Budget {
	var limits []restartbudget.Budget
	for _, b := range all {
		limits = append(limits, b.Budget)
	}
	return limits
}
