package restarts

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// maxBudgets is the maximum number of RestartBudgets per namespace, since each round evaluates all of them.
const maxBudgets = 250

// tooMany is the problem of a budget beyond maxBudgets.
var tooMany = fmt.Sprintf(
	"only the %d oldest RestartBudgets of a namespace count, and this one counts as if it selected all pods", maxBudgets)

// countedBudgets are the RestartBudgets at one moment.
type countedBudgets struct {
	*selection[budget]

	// beyond are the budgets beyond maxBudgets, by namespace, oldest first. For them, selection has one budget that
	// allows no restart in the namespace: ignoring them would lift limits, and evaluating all their selectors would
	// take unbounded time.
	beyond map[string][]*budget
}

// selectBudgets returns the RestartBudgets that count: the oldest of each namespace, and of equal age the first by
// name, so that all replicas agree.
func (c *cluster) selectBudgets() countedBudgets {
	objects, beyond := byNamespace(c.budgets), map[string][]*budget{}
	for namespace, all := range objects {
		if len(all) > maxBudgets {
			counting, others := oldest(all, maxBudgets, func(b *budget) (time.Time, string) { return b.created, b.name })
			objects[namespace], beyond[namespace] = append(counting, others[0].holdingAll()), others
		}
	}
	return countedBudgets{c.budgetMatches.newSelection(objects, c.pods.Len()), beyond}
}

// maxDisruptions is the maximum number of PodDisruptionBudgets per namespace; one per Deployment is usual.
const maxDisruptions = 1000

// selectDisruptions is selectBudgets for PodDisruptionBudgets.
func (c *cluster) selectDisruptions() *selection[disruption] {
	objects := byNamespace(c.disruption)
	for namespace, all := range objects {
		if len(all) > maxDisruptions {
			counting, others := oldest(all, maxDisruptions, func(d *disruption) (time.Time, string) {
				return d.created, d.limit.Name
			})
			objects[namespace] = append(counting, &disruption{selector: everything, limit: noneAllowed(others[0].limit.Name)})
		}
	}
	return c.disruptionMatches.newSelection(objects, c.pods.Len())
}

// oldest splits objects into the most oldest ones and the others, both sorted by age.
func oldest[R any](all []*R, most int, age func(*R) (time.Time, string)) (counting, others []*R) {
	slices.SortFunc(all, func(a, b *R) int {
		createdA, nameA := age(a)
		createdB, nameB := age(b)
		return cmp.Or(createdA.Compare(createdB), cmp.Compare(nameA, nameB))
	})
	return slices.Clip(all[:most]), all[most:]
}

// holdingAll returns a budget that replaces b, which is beyond maxBudgets: it allows no restart in the namespace.
func (b *budget) holdingAll() *budget {
	return &budget{
		name: b.name, problem: tooMany, selector: everything, Budget: restartbudget.Budget{Limit: noneAllowed(b.Name)},
		created: b.created, generation: b.generation, status: b.status,
	}
}

// noneAllowed is the limit of an invalid budget: it allows no restart.
func noneAllowed(name string) restartbudget.Limit {
	return restartbudget.Limit{Name: name, MaxUnavailable: &restartbudget.Amount{}}
}

// notUsed is why a RestartBudget is not used as written. It is a metric label.
type notUsed string

// Reasons.
const (
	notUsedInvalid  notUsed = "invalid"
	notUsedTooLarge notUsed = "too_large"
	notUsedTooMany  notUsed = "too_many"
)

var allNotUsed = []notUsed{notUsedInvalid, notUsedTooLarge, notUsedTooMany}

// unusedBudgets counts the RestartBudgets that are not used as written.
func (c *cluster) unusedBudgets() map[notUsed]int {
	n := map[notUsed]int{}
	for _, all := range byNamespace(c.budgets) {
		n[notUsedTooMany] += max(len(all)-maxBudgets, 0)
		for _, b := range all {
			switch {
			case b.tooLarge:
				n[notUsedTooLarge]++
			case b.problem != "":
				n[notUsedInvalid]++
			}
		}
	}
	return n
}

// byNamespace returns all records of a store, sorted by name.
func byNamespace[O watch.Object, R any](s *watch.Store[O, R]) map[string][]*R {
	keys := s.Keys()
	slices.SortFunc(keys, func(a, b watch.Key) int { return cmp.Compare(a.Name, b.Name) })
	objects := map[string][]*R{}
	for _, key := range keys {
		if r := s.Get(key); r != nil { // not deleted meanwhile
			objects[key.Namespace] = append(objects[key.Namespace], r)
		}
	}
	return objects
}
