package restartbudget

// Standing is the state of a workload, as the rules use it.
type Standing struct {
	// Replicas is the desired number of pods. Available is the number of pods that are Ready, not being deleted, and
	// without a restart in progress.
	Replicas, Available int
	// MaxUnavailable is the maximum of unavailable pods, and Source names what sets it.
	MaxUnavailable int
	Source         string
}

// Standing returns the state of a workload. restarting are the UIDs of pods with a restart in progress.
func (w *Workload) Standing(id WorkloadID, restarting map[string]bool) Standing {
	r := &round{restarting: restarting, workloads: map[WorkloadID]*tally{}}
	t := r.tally(&candidate{Request: Request{Workload: id}, workload: w})
	return Standing{Replicas: w.Replicas, Available: t.available, MaxUnavailable: t.pods, Source: t.source}
}
