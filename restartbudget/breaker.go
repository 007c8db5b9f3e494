package restartbudget

import "time"

// Breaker is open while so much fails at once that restarts are not the answer.
type Breaker struct {
	Open bool
	// Changed says that it has opened or closed with this Result.
	Changed bool
	// Held containers within the last minute, of so many Workloads. Containers that asked and have been granted a restart are among them.
	Held, Workloads int
	// Guarded containers.
	Guarded int
}

type breaker struct {
	open bool
	held map[ContainerKey]sighting
}

// sighting is when a container asked last.
type sighting struct {
	workload WorkloadID
	at       time.Time
}

// observe takes the requests, and says whether the breaker is open. It is closed while guarded liveness is off.
func (b *breaker) observe(now time.Time, in Input, candidates []candidate) Breaker {
	for i := range candidates {
		if c := &candidates[i]; c.known() && !c.pod.Native { // of what is not guarded nothing is held
			b.held[c.ContainerKey] = sighting{c.Workload, now}
		}
	}
	workloads := map[WorkloadID]bool{}
	for key, s := range b.held {
		if _, pod := in.find(s.workload, key.PodUID); pod == nil || now.Sub(s.at) >= window { // one that is gone is none of the guarded
			delete(b.held, key)
			continue
		}
		workloads[s.workload] = true
	}
	r := Breaker{Held: len(b.held), Workloads: len(workloads), Guarded: in.Guarded}
	limits := in.Settings.Breaker.withDefaults()
	r.Open = in.Settings.Mode != Off && r.Workloads >= limits.Workloads && r.Held*100 >= limits.Percent*r.Guarded
	r.Changed = r.Open != b.open
	b.open = r.Open
	return r
}
