package restartbudget

// Amount is a number of pods, or a percentage of the desired pods, like Kubernetes' IntOrString.
type Amount struct {
	// Value is a number of pods or a percentage; 0 or more.
	Value int
	// Percent says that Value is a percentage.
	Percent bool
}

// of returns the number of pods; it rounds a percentage up or down.
func (a Amount) of(replicas int, up bool) int {
	switch {
	case !a.Percent:
		return a.Value
	case up:
		return (a.Value*replicas + 99) / 100
	}
	return a.Value * replicas / 100
}

// Limit is how many pods of a workload may be unavailable. It applies to each selected workload separately.
type Limit struct {
	// Name is namespace/name of the object.
	Name string
	// MaxUnavailable and MinAvailable limit the pods. If both are set, the stricter one applies; if neither is set,
	// there is no limit.
	MaxUnavailable, MinAvailable *Amount
}

// Budget is a RestartBudget. A percentage of MaxUnavailable is rounded down, but to at least one pod unless it is 0 %,
// as in a Deployment: otherwise small workloads would never restart. A percentage of MinAvailable is rounded up, even
// if no restart is allowed then.
type Budget struct {
	Limit

	// PerMinute is the maximum of restarts per minute of all workloads together that the budget selects. Default 0: no
	// limit.
	PerMinute int
}

// allowance is how many pods of a workload may be unavailable, and why.
type allowance struct {
	pods int
	// source names what sets the allowance.
	source string
}

// stricter returns the stricter of two allowances, b if a is not set yet.
func stricter(a, b allowance) allowance {
	if a.source == "" || b.pods < a.pods {
		return b
	}
	return a
}

// MaxUnavailable returns how many pods of a workload may be unavailable.
func (w *Workload) MaxUnavailable(id WorkloadID) int { return w.maxUnavailable(id).pods }

// maxUnavailable returns the allowance of the strictest RestartBudget, otherwise of the strictest PodDisruptionBudget,
// otherwise the default: 25 %, rounded down, at least 1. It ignores PodDisruptionBudgets for a pod without an owner,
// since they count such pods together.
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

// strictest returns the stricter of a and the allowance of l.
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
