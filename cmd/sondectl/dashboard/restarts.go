package dashboard

import (
	"slices"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
)

// Restarts are what the leader has decided about guarded containers.
type Restarts struct {
	Kubernetes bool   `json:"kubernetes"`
	Guarded    uint32 `json:"guarded"`
	// Round is the leader's last one, nil while no replica decides.
	Round *Round `json:"round,omitempty"`
	// Notes say why nothing is granted.
	Notes     []string  `json:"notes,omitempty"`
	Unhelpful []string  `json:"unhelpful,omitempty"`
	Rows      []Restart `json:"rows"`
	LeftOut   int       `json:"leftOut,omitempty"`
}

// Round says when and by what the leader has decided last.
type Round struct {
	Replica   string     `json:"replica"`
	Epoch     int64      `json:"epoch"`
	At        *time.Time `json:"at,omitempty"`
	Mode      string     `json:"mode"`
	Open      bool       `json:"open"` // the breaker
	Namespace string     `json:"namespace,omitempty"`
	Failed    uint32     `json:"failed"`
	Workloads uint32     `json:"workloads"`
}

// Restart is a guarded container that fails, or restarts.
type Restart struct {
	Namespace string     `json:"namespace"`
	Pod       string     `json:"pod"`
	Container string     `json:"container"`
	Workload  string     `json:"workload"`
	State     string     `json:"state"`
	Level     Level      `json:"level"`
	Since     *time.Time `json:"since,omitempty"`
	Why       string     `json:"why,omitempty"`
	Failure   string     `json:"failure,omitempty"`
	// Count of Limit is used of what the decision counts; Limit is 0 if it does not count.
	Count uint32 `json:"count,omitempty"`
	Limit uint32 `json:"limit,omitempty"`
	Needs string `json:"needs,omitempty"`
	Do    string `json:"do"`
}

func restartsOf(list *adminv1.ListRestartsResponse) *Restarts {
	all := &Restarts{
		Kubernetes: list != nil, Guarded: list.GetGuarded(), Unhelpful: shortened(list.GetUnhelpful()), Rows: []Restart{},
	}
	if list == nil {
		return all
	}
	round := list.GetRound()
	all.Notes = shortened(describe.Round(round))
	if round != nil {
		all.Round = &Round{
			round.GetReplica(), round.GetEpoch(), timeOf(round.GetAt()), round.GetMode(), round.GetBreakerOpen(),
			round.GetBreakerNamespace(), round.GetFailed(), round.GetWorkloads(),
		}
	}
	for _, r := range list.GetRestarts() {
		all.Rows = append(all.Rows, restartOf(r))
	}
	slices.SortStableFunc(all.Rows, func(a, b Restart) int {
		return slices.Index(levels, a.Level) - slices.Index(levels, b.Level)
	})
	all.LeftOut = max(0, len(all.Rows)-maxListed)
	all.Rows = all.Rows[:len(all.Rows)-all.LeftOut]
	return all
}

func restartOf(r *adminv1.Restart) Restart {
	row := Restart{
		Namespace: r.GetNamespace(), Pod: r.GetPod(), Container: r.GetContainer(), Workload: r.GetWorkload(),
		Since: timeOf(r.GetSince()), Why: shorten(r.GetWhy()), Failure: shorten(r.GetFailure()),
		Count: r.GetDecision().GetCount(), Limit: r.GetDecision().GetLimit(), Needs: shorten(r.GetDecision().GetNeeds()),
		Do: "sondectl restarts explain " + r.GetPod() + " -n " + r.GetNamespace(), Level: Bad,
	}
	switch r.GetState() {
	case adminv1.Restart_GRANTED:
		row.State, row.Level = "granted", Warn
	case adminv1.Restart_RESTARTING:
		row.State, row.Level = "restarting", Warn
	case adminv1.Restart_UNHELPFUL:
		row.State = "restarts do not help"
		row.Do = "sondectl restarts release " + r.GetWorkload() + ", after you have fixed the cause"
	default:
		row.State = "waiting"
	}
	return row
}
