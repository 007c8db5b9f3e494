package restartbudget

import (
	"fmt"
	"time"
)

// Breaker is a circuit breaker. It is open while so many containers fail at once that restarts would not help.
type Breaker struct {
	// Open says that it is open for all namespaces.
	Open bool
	// Changed says that it has opened or closed with this Result, for all namespaces or for one.
	Changed bool
	// Held counts containers with failures within the last minute, Workloads their workloads. It includes containers that
	// were granted a restart.
	Held, Workloads int
	// Guarded is the number of guarded containers.
	Guarded int
	// Alone is the only namespace for which it is open, or zero. Most of the failing containers are in this namespace,
	// so their failures say nothing about other namespaces.
	Alone NamespaceHeld
}

// NamespaceHeld counts failing containers of a namespace, as Breaker does for all.
type NamespaceHeld struct {
	Name            string
	Held, Workloads int
}

// Why returns why no restart is granted in a namespace, "" if the breaker is closed for it.
func (b *Breaker) Why(namespace string) string {
	if b.Open {
		return fmt.Sprintf("within a minute %d of %d guarded containers failed, of %d workloads",
			b.Held, b.Guarded, b.Workloads)
	}
	if n := b.Alone; n.Name == namespace && n.Held > 0 {
		return fmt.Sprintf("within a minute %d of %d guarded containers failed, "+
			"and %d of them, of %d workloads, in namespace %s: it is open only for that namespace",
			b.Held, b.Guarded, n.Held, n.Workloads, n.Name)
	}
	return ""
}

type breaker struct {
	open  bool
	alone string // the namespace for which it is open
	held  map[ContainerKey]sighting
}

// sighting is the last request of a container.
type sighting struct {
	workload WorkloadID
	at       time.Time
}

// observe updates the breaker from the requests. The breaker is closed while guarded liveness is off.
func (b *breaker) observe(now time.Time, in Input, candidates []candidate) Breaker {
	for i := range candidates {
		if c := &candidates[i]; c.known() && !c.pod.Native { // failures of unguarded containers are never held
			b.held[c.ContainerKey] = sighting{c.Workload, now}
		}
	}
	workloads, byNamespace := map[WorkloadID]bool{}, map[string]*NamespaceHeld{}
	for key, s := range b.held {
		// A deleted pod no longer counts.
		if _, pod := in.find(s.workload, key.PodUID); pod == nil || now.Sub(s.at) >= window {
			delete(b.held, key)
			continue
		}
		n := byNamespace[s.workload.Namespace]
		if n == nil {
			n = &NamespaceHeld{Name: s.workload.Namespace}
			byNamespace[n.Name] = n
		}
		n.Held++
		if !workloads[s.workload] {
			workloads[s.workload] = true
			n.Workloads++
		}
	}
	r := Breaker{Held: len(b.held), Workloads: len(workloads), Guarded: in.Guarded}
	r.judge(in, byNamespace)
	r.Changed = r.Open != b.open || r.Alone.Name != b.alone
	b.open, b.alone = r.Open, r.Alone.Name
	return r
}

// judge opens the breaker when both limits are reached. Each namespace counts for at most half of the needed
// percentage, so that no namespace alone opens the breaker for the others. If the sum is then too small, the breaker
// opens only for the namespace with more than half, if that has enough workloads itself. Two such namespaces open it
// for all.
func (b *Breaker) judge(in Input, byNamespace map[string]*NamespaceHeld) {
	limits := in.Settings.Breaker.withDefaults()
	needed := limits.Percent * b.Guarded // held containers, times 100
	if in.Settings.Mode == Off || b.Workloads < limits.Workloads || b.Held*100 < needed {
		return
	}
	counted := 0 // twice what counts towards needed
	for _, n := range byNamespace {
		counted += min(2*100*n.Held, needed)
		if 2*100*n.Held > needed && n.Workloads >= limits.Workloads {
			b.Alone = *n
		}
	}
	if counted >= 2*needed || b.Alone.Held > 0 && in.isOnly(b.Alone.Name) {
		b.Open, b.Alone = true, NamespaceHeld{}
	}
}

// isOnly reports whether no other namespace has guarded containers.
func (in *Input) isOnly(namespace string) bool {
	for id := range in.Workloads {
		if id.Namespace != namespace {
			return false
		}
	}
	return true
}
