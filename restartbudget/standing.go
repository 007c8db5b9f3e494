package restartbudget

// Standing is what counts of a workload when one of its containers asks.
type Standing struct {
	// Replicas that are desired, and Available pods: Ready, not being deleted, and without a restart in progress.
	Replicas, Available int
	// MaxUnavailable pods at a time, and Source, what says so.
	MaxUnavailable int
	Source         string
}

// Standing returns what the rules count of a workload. restarting are the UIDs of pods with a restart in progress.
func (w *Workload) Standing(id WorkloadID, restarting map[string]bool) Standing {
	r := &round{restarting: restarting, workloads: map[WorkloadID]*tally{}}
	t := r.tally(&candidate{Request: Request{Workload: id}, workload: w})
	return Standing{Replicas: w.Replicas, Available: t.available, MaxUnavailable: t.pods, Source: t.source}
}
