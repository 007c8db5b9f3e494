package restartbudget

import (
	"fmt"
	"time"
)

// Breaker is open while so much fails at once that restarts are not the answer.
type Breaker struct {
	// Open says that it is open for all.
	Open bool
	// Changed says that it has opened or closed with this Result, for all or for a namespace.
	Changed bool
	// Held containers within the last minute, of so many Workloads. Containers that asked and have been granted a restart are among them.
	Held, Workloads int
	// Guarded containers.
	Guarded int
	// Alone is the namespace for which alone it is open, zero if it is none: most of what is held is its own, which says nothing of the others.
	Alone NamespaceHeld
}

// NamespaceHeld counts what is held of a namespace, as Breaker does.
type NamespaceHeld struct {
	Name            string
	Held, Workloads int
}

// Why says why no restart is granted in a namespace, "" if the breaker is closed for it.
func (b *Breaker) Why(namespace string) string {
	if b.Open {
		return fmt.Sprintf("within a minute %d of %d guarded containers failed, of %d workloads", b.Held, b.Guarded, b.Workloads)
	}
	if n := b.Alone; n.Name == namespace && n.Held > 0 {
		return fmt.Sprintf("within a minute %d of %d guarded containers failed, and %d of them, of %d workloads, in namespace %s, for which alone it is open", b.Held, b.Guarded, n.Held, n.Workloads, n.Name)
	}
	return ""
}

type breaker struct {
	open  bool
	alone string // the namespace for which it is open
	held  map[ContainerKey]sighting
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
	workloads, byNamespace := map[WorkloadID]bool{}, map[string]*NamespaceHeld{}
	for key, s := range b.held {
		if _, pod := in.find(s.workload, key.PodUID); pod == nil || now.Sub(s.at) >= window { // one that is gone is none of the guarded
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

// judge decides for whom the breaker is open. If both limits are reached that is all, unless it takes what one namespace has beyond half of the percentage:
// then it is open for that namespace alone, if that has enough workloads by itself. So no namespace can open it for the others. Of two with more than half
// it takes both.
func (b *Breaker) judge(in Input, byNamespace map[string]*NamespaceHeld) {
	limits := in.Settings.Breaker.withDefaults()
	needed := limits.Percent * b.Guarded // held containers, times 100
	if in.Settings.Mode == Off || b.Workloads < limits.Workloads || b.Held*100 < needed {
		return
	}
	counted := 0 // twice
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
