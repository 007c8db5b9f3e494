package source

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/controller/watch"
)

// index maps slices to Services and pods, and back, so that the cost of a change depends on what it affects.
type index struct {
	slices map[watch.Key]sliceLinks             // by slice
	of     map[watch.Key]map[watch.Key]struct{} // by Service: its slices
	naming map[podRef]map[watch.Key]struct{}    // by pod: the slices that have it
}

// podRef identifies a pod in a slice by name and UID: any user may write a slice with a UID of another namespace.
type podRef struct {
	uid types.UID
	key watch.Key
}

// sliceLinks are the objects that a slice refers to.
type sliceLinks struct {
	service watch.Key
	pods    []podRef
	ports   []portUse
	// former are the pods of the slice before the last update.
	former []podRef
	// portsDiffer says that the last update changed the ports.
	portsDiffer bool
}

func newIndex() index {
	return index{
		slices: map[watch.Key]sliceLinks{}, of: map[watch.Key]map[watch.Key]struct{}{},
		naming: map[podRef]map[watch.Key]struct{}{},
	}
}

// update updates the links of changed slices.
func (x *index) update(d dirty, get func(watch.Key) *slice) {
	for key := range d.slices {
		old := x.slices[key]
		unlink(x.of, old.service, key)
		if old.service != (watch.Key{}) {
			d.services[old.service] = struct{}{} // also if the slice has moved to another Service
		}
		now := linksOf(key.Namespace, get(key))
		now.former = old.pods
		now.portsDiffer = !slices.Equal(old.ports, now.ports)
		x.slices[key] = now
		if now.service != (watch.Key{}) {
			link(x.of, now.service, key)
		}
		if slices.Equal(old.pods, now.pods) {
			continue
		}
		for _, pod := range old.pods {
			unlink(x.naming, pod, key)
		}
		for _, pod := range now.pods {
			link(x.naming, pod, key)
		}
	}
}

// linksOf returns the links of a slice; nil, or a slice that does not count, has none.
func linksOf(namespace string, s *slice) sliceLinks {
	if s == nil || s.beyond {
		return sliceLinks{}
	}
	l := sliceLinks{service: watch.Key{Namespace: namespace, Name: s.service}}
	for _, p := range s.ports {
		l.ports = append(l.ports, portUse{p.port, p.protocol})
	}
	for i := range s.endpoints {
		if ref := s.endpoints[i].ref(namespace); ref.uid != "" {
			l.pods = append(l.pods, ref)
		}
	}
	return l
}

// affected adds to d the objects that a changed slice affects: its Service, and the pods whose ports it changes. A
// change of readiness affects no ports.
func (x *index) affected(key watch.Key, d *dirty) {
	l := x.slices[key]
	if l.service != (watch.Key{}) {
		d.services[l.service] = struct{}{}
	}
	if l.portsDiffer || !slices.Equal(l.former, l.pods) {
		for _, pod := range slices.Concat(l.former, l.pods) {
			d.pods[pod.key] = struct{}{}
		}
	}
	if l.former = nil; l.service == (watch.Key{}) {
		delete(x.slices, key)
	} else {
		x.slices[key] = l
	}
}

// servicesOfPod adds to d the Services with the pod as an endpoint.
func (x *index) servicesOfPod(pod podRef, d *dirty) {
	for key := range x.naming[pod] {
		d.services[x.slices[key].service] = struct{}{}
	}
}

// names reports whether a slice has the pod.
func (x *index) names(pod podRef) bool { return len(x.naming[pod]) > 0 }

// slicesOf returns the slices of a Service, sorted.
func (x *index) slicesOf(service watch.Key) []watch.Key { return sorted(x.of[service]) }

// portsOf returns the ports of a pod that Services use.
func (x *index) portsOf(pod podRef) []portUse {
	var used []portUse
	for _, key := range sorted(x.naming[pod]) {
		used = append(used, x.slices[key].ports...)
	}
	return used
}

func link[K comparable](m map[K]map[watch.Key]struct{}, from K, to watch.Key) {
	if m[from] == nil {
		m[from] = map[watch.Key]struct{}{}
	}
	m[from][to] = struct{}{}
}

func unlink[K comparable](m map[K]map[watch.Key]struct{}, from K, to watch.Key) {
	delete(m[from], to)
	if len(m[from]) == 0 {
		delete(m, from)
	}
}

func sorted[V any](keys map[watch.Key]V) []watch.Key {
	return slices.SortedFunc(maps.Keys(keys), func(a, b watch.Key) int {
		if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
}
