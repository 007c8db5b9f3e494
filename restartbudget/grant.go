package restartbudget

import (
	"cmp"
	"time"
)

// GrantID identifies a grant. A container may have a grant for each restart count and try; a new try follows a refunded
// grant.
type GrantID struct {
	ContainerKey

	// Restarts is the restart count of the container that may restart.
	Restarts int
	// Try counts from 0.
	Try int
}

// Before reports whether id is older than another grant of the same container.
func (id GrantID) Before(other GrantID) bool {
	return cmp.Or(cmp.Compare(id.Restarts, other.Restarts), cmp.Compare(id.Try, other.Try)) < 0
}

// Outcome of a grant.
type Outcome string

// Outcomes.
const (
	// Open grants have not been used yet.
	Open Outcome = ""
	// Refunded grants did not lead to a restart, and do not count against limits.
	Refunded Outcome = "refunded"
	// Spent grants led to a restart whose effect is still unknown.
	Spent Outcome = "spent"
	// Helped: the liveness probe has passed since the restart.
	Helped Outcome = "helped"
	// Unhelpful: the liveness probe has failed since the restart, and never passed.
	Unhelpful Outcome = "unhelpful"
	// Released is an unhelpful grant that no longer counts, since an operator released the workload.
	Released Outcome = "released"
)

// Grant is a container's right to one restart. It counts against its workload's budget until the pod is Ready again.
type Grant struct {
	ID       GrantID
	Workload WorkloadID
	// Node and Template of the pod.
	Node, Template string
	// DryRun grants have no effect.
	DryRun bool
	// Granted is when the restart was granted.
	Granted time.Time
	// Spent is when the restart was observed, zero before.
	Spent time.Time
	// Ended is when the restart stopped being in progress, zero before: the pod was Ready again, InProgress had passed,
	// or the grant was refunded.
	Ended time.Time
	// Judged is when the restart was found helpful or unhelpful, zero before.
	Judged  time.Time
	Outcome Outcome
}

func compareGrants(a, b Grant) int {
	return cmp.Or(a.Granted.Compare(b.Granted), compareContainers(a.ID.ContainerKey, b.ID.ContainerKey),
		cmp.Compare(a.ID.Restarts, b.ID.Restarts), cmp.Compare(a.ID.Try, b.ID.Try))
}
