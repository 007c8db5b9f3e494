package restarts

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// budgetResource is the plural name of RestartBudgets.
const budgetResource = "restartbudgets"

// Bounds of nativeAfter.
const (
	minNativeAfter = time.Minute
	maxNativeAfter = 24 * time.Hour
)

// budget is what is kept of a RestartBudget.
type budget struct {
	restartbudget.Budget
	name     string // of the object
	selector labels.Selector
	// away has its Policy, and After if that is AwayNative.
	away Away
	// problem says why it cannot be used as it is written, "" if it can.
	problem    string
	generation int64
	status     v1alpha1.RestartBudgetStatus
}

// newBudgets returns the store of RestartBudgets, with a client of group sonde.dev.
func newBudgets(client rest.Interface, changed func(), logger *slog.Logger) *watch.Store[*v1alpha1.RestartBudget, budget] {
	return watch.New(watch.Kind[*v1alpha1.RestartBudget, budget]{
		Client: client, Resource: budgetResource, New: &v1alpha1.RestartBudget{}, Synced: changed,
		Record: func(o *v1alpha1.RestartBudget) (budget, bool) { return readBudget(o), true },
		Changed: func(key watch.Key, before, now *budget) {
			if now != nil && now.problem != "" && (before == nil || before.problem != now.problem) {
				logger.Error("RestartBudget not valid, restarts of its pods are held", "namespace", key.Namespace, "name", key.Name, "err", now.problem)
			}
			if before == nil || now == nil || !before.decidesAs(now) {
				changed()
			}
		},
	})
}

// readBudget reads what the CustomResourceDefinition should have refused as a budget that allows no restart: nothing may restart since a limit was
// written wrong. If its selector cannot be read, these are all guarded pods of its namespace.
func readBudget(o *v1alpha1.RestartBudget) budget {
	b := budget{name: o.Name, generation: o.Generation, status: *o.Status.DeepCopy()}
	b.Name = o.Namespace + "/" + o.Name
	err := errors.Join(b.readSelector(o.Spec.Selector), b.readLimits(&o.Spec), b.readAway(&o.Spec))
	if err != nil {
		b.problem = err.Error()
		b.Limit = restartbudget.Limit{Name: b.Name, MaxUnavailable: &restartbudget.Amount{}}
		b.PerMinute, b.away = 0, Away{}
	}
	return b
}

func (b *budget) readSelector(s *metav1.LabelSelector) error {
	b.selector = labels.Everything()
	if s == nil {
		return errors.New("spec.selector: required, {} selects all pods")
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
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
			errs = append(errs, fmt.Errorf(`spec.%s: %.80q: must be a number of pods, 0 or more, or a share from "0%%" to "100%%"`, field, v.String()))
		}
		return a
	}
	b.MaxUnavailable, b.MinAvailable = amount("maxUnavailable", s.MaxUnavailable), amount("minAvailable", s.MinAvailable)
	switch {
	case s.MaxUnavailable != nil && s.MinAvailable != nil:
		errs = append(errs, errors.New("spec: maxUnavailable and minAvailable: only one of them is allowed"))
	case s.MaxUnavailable == nil && s.MinAvailable == nil && s.PerMinute == nil && s.WhenAway == "":
		errs = append(errs, errors.New("spec: at least one of maxUnavailable, minAvailable, perMinute and whenAway is required"))
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
		b.away = Away{Policy: AwaySlots}
		return nil
	case v1alpha1.WhenAwayNative:
		after, err := mesh.ParseDuration(s.NativeAfter)
		if err != nil || after.Std() < minNativeAfter || after.Std() > maxNativeAfter {
			return fmt.Errorf("spec.nativeAfter: %.80q: must be a duration from 1m to 24h", s.NativeAfter)
		}
		b.away = Away{Policy: AwayNative, After: after.Std()}
		return nil
	}
	return fmt.Errorf("spec.whenAway: %.80q: must be %s, %s or %s", s.WhenAway, v1alpha1.WhenAwayHold, v1alpha1.WhenAwaySlots, v1alpha1.WhenAwayNative)
}

// decidesAs reports whether two budgets differ in nothing but their status, which decides nothing.
func (b *budget) decidesAs(other *budget) bool {
	alike := *other
	alike.status = b.status
	return reflect.DeepEqual(*b, alike)
}

// limitsOf returns what budgets allow.
func limitsOf(all []*budget) []restartbudget.Budget {
	var limits []restartbudget.Budget
	for _, b := range all {
		limits = append(limits, b.Budget)
	}
	return limits
}
