package envoysim

import (
	"maps"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// Get returns the resource with a name, or nil.
func (e *Envoy) Get(n resource.Name) *Resource { return e.has[n] }

// All returns all resources: those in use, and those warming for the first time.
func (e *Envoy) All() map[resource.Name]*Resource { return maps.Clone(e.has) }

// Active returns the active listener with a name, or nil.
func (e *Envoy) Active(name string) *Resource { return e.active[name] }

// Received reports whether a resource was received on this stream, so that the server knows it.
func (e *Envoy) Received(r *Resource) bool { return e.received[r] }

// Warming returns how many clusters warm.
func (e *Envoy) Warming() int { return len(e.warming) }

// Withholds reports whether a response with clusters is unanswered.
func (e *Envoy) Withholds() bool { return len(e.withheld) > 0 }

// Refused reports whether it has refused a resource.
func (e *Envoy) Refused() bool { return e.refused }

// Count returns how many resources of a type it has.
func (e *Envoy) Count(t resource.Type) int {
	count := 0
	for n := range e.has {
		if n.Type == t {
			count++
		}
	}
	return count
}

// HasUnnamed reports whether the versions that it would report on the next stream differ from the resources that it
// has, so that a server could not know them.
func (e *Envoy) HasUnnamed() bool {
	for n, r := range e.has {
		if wild(n.Type) && e.named[n] != r.Version {
			return true
		}
	}
	for n := range e.named {
		if e.has[n] == nil {
			return true
		}
	}
	return false
}

// Unnamed reports whether a resource is from a lost stream and was not reported on this one.
func (e *Envoy) Unnamed(r *Resource) bool { return e.unnamed[r] }

// Names returns the version of a resource that it would report on the next stream, or "".
func (e *Envoy) Names(n resource.Name) string { return e.named[n] }

// Ready reports whether a cluster has been warm, so that routes can use it.
func (e *Envoy) Ready(cluster string) bool { return e.ready[cluster] }

// Asks reports whether it has ever requested a type.
func (e *Envoy) Asks(t resource.Type) bool { return e.begun[t] }

// Subscribes reports whether it subscribes to a resource, by the wildcard or by name.
func (e *Envoy) Subscribes(n resource.Name) bool { return wild(n.Type) || e.names[n] }
