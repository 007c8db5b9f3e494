package restartbudget

import (
	"cmp"
	"time"
)

// GrantID names a grant: a container has one for each restart count and try. A try follows one that was refunded.
type GrantID struct {
	ContainerKey

	// Restarts is the restart count of the container that may restart.
	Restarts int
	// Try counts from 0.
	Try int
}

// Before reports whether a grant of the same container is older.
func (id GrantID) Before(other GrantID) bool {
	return cmp.Or(cmp.Compare(id.Restarts, other.Restarts), cmp.Compare(id.Try, other.Try)) < 0
}

// Outcome of a grant.
type Outcome string

// Outcomes.
const (
	// Open grants are not used yet.
	Open Outcome = ""
	// Refunded grants have led to no restart, and do not count.
	Refunded Outcome = "refunded"
	// Spent grants have led to a restart of which it is not known yet whether it helped.
	Spent Outcome = "spent"
	// Helped: the check has passed since.
	Helped Outcome = "helped"
	// Unhelpful: the check has failed since, and never passed.
	Unhelpful Outcome = "unhelpful"
	// Released is an Unhelpful one that counts no more, since an operator has released the workload.
	Released Outcome = "released"
)

// Grant is one container's right to restart once, and a reservation in its workload's budget until the pod is Ready again.
type Grant struct {
	ID       GrantID
	Workload WorkloadID
	// Node and Template are those of the pod.
	Node, Template string
	// DryRun grants are not to be followed.
	DryRun bool
	// Granted is when it was made.
	Granted time.Time
	// Spent is when the restart was seen, zero before.
	Spent time.Time
	// Ended is when it was not in progress any more: the pod was Ready again, InProgress was over, or it was refunded. Zero before.
	Ended time.Time
	// Judged is when the restart was seen to be helpful or not, zero before.
	Judged  time.Time
	Outcome Outcome
}

func compareGrants(a, b Grant) int {
	return cmp.Or(a.Granted.Compare(b.Granted), compareContainers(a.ID.ContainerKey, b.ID.ContainerKey),
		cmp.Compare(a.ID.Restarts, b.ID.Restarts), cmp.Compare(a.ID.Try, b.ID.Try))
}
