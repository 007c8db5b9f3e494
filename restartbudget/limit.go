package restartbudget

// Amount is a number of pods or a share of the desired ones, like Kubernetes' IntOrString.
type Amount struct {
	// Value is pods, or percent. 0 or more.
	Value int
	// Percent says that Value is a share.
	Percent bool
}

// of returns the number of pods, and rounds a share down or up.
func (a Amount) of(replicas int, up bool) int {
	switch {
	case !a.Percent:
		return a.Value
	case up:
		return (a.Value*replicas + 99) / 100
	}
	return a.Value * replicas / 100
}

// Limit says how many pods of a workload may be unavailable. Each workload that it selects counts on its own.
type Limit struct {
	// Name is namespace/name of the object.
	Name string
	// MaxUnavailable pods or MinAvailable ones. With both the stricter one holds, with none it limits nothing.
	MaxUnavailable, MinAvailable *Amount
}

// Budget is a RestartBudget. A share of MaxUnavailable is rounded down, but more than 0 % is at least one pod, as a Deployment's is: else small
// workloads would never restart. A share of MinAvailable is rounded up, and kept to the letter. Where that leaves none, there is no restart.
type Budget struct {
	Limit

	// PerMinute is how many restarts of all its workloads together are granted in any minute. Default 0: no limit.
	PerMinute int
}

// allowance is how many pods of a workload may be unavailable.
type allowance struct {
	pods int
	// source says where it comes from.
	source string
}

// stricter returns the stricter of two allowances, b if a is none yet.
func stricter(a, b allowance) allowance {
	if a.source == "" || b.pods < a.pods {
		return b
	}
	return a
}

// MaxUnavailable returns how many pods of a workload may be unavailable.
func (w *Workload) MaxUnavailable(id WorkloadID) int { return w.maxUnavailable(id).pods }

// maxUnavailable returns what the strictest of the RestartBudgets allows, else the strictest of the PodDisruptionBudgets, else the default: 25 %,
// rounded down, at least 1. PodDisruptionBudgets count pods without owner together, so that they say nothing of one.
func (w *Workload) maxUnavailable(id WorkloadID) allowance {
	var found allowance
	for _, b := range w.Budgets {
		found = b.strictest(found, "RestartBudget "+b.Name, w.Replicas, roundBudget)
	}
	if found.source == "" && id.Kind != "Pod" {
		for _, l := range w.Disruption {
			found = l.strictest(found, "PodDisruptionBudget "+l.Name, w.Replicas, roundDisruption)
		}
	}
	if found.source != "" {
		return found
	}
	return allowance{max(w.Replicas/4, 1), "the default, 25 %"}
}

// strictest returns the strictest of a and what l says.
func (l *Limit) strictest(a allowance, source string, replicas int, maximum func(Amount, int) int) allowance {
	if l.MaxUnavailable != nil {
		a = stricter(a, allowance{maximum(*l.MaxUnavailable, replicas), source})
	}
	if l.MinAvailable != nil {
		a = stricter(a, allowance{max(replicas-l.MinAvailable.of(replicas, true), 0), source})
	}
	return a
}

func roundBudget(a Amount, replicas int) int {
	if a.Percent && a.Value > 0 {
		return max(a.of(replicas, false), 1)
	}
	return a.of(replicas, false)
}

// roundDisruption rounds up. Source: kubernetes pkg/controller/disruption/disruption.go, getExpectedPodCount.
func roundDisruption(a Amount, replicas int) int { return a.of(replicas, true) }
