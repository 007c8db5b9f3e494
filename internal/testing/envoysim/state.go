package envoysim

import (
	"maps"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// Get returns what it has with that name, nil if nothing.
func (e *Envoy) Get(n resource.Name) *Resource { return e.has[n] }

// All returns all that it has: what is in use, and what warms for the first time.
func (e *Envoy) All() map[resource.Name]*Resource { return maps.Clone(e.has) }

// Active returns the listener in use with that name, nil if there is none.
func (e *Envoy) Active(name string) *Resource { return e.active[name] }

// Received says whether a resource came on this stream, so that the server knows that it has it.
func (e *Envoy) Received(r *Resource) bool { return e.received[r] }

// Warming returns how many clusters warm.
func (e *Envoy) Warming() int { return len(e.warming) }

// Withholds says whether a response with clusters is not answered yet.
func (e *Envoy) Withholds() bool { return len(e.withheld) > 0 }

// Refused says whether it has refused something.
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

// HasUnnamed says whether what it would name on the next stream is not what it has, so that a server could not know.
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

// Unnamed says whether something that it has came on a stream that was lost, and is not named on this one.
func (e *Envoy) Unnamed(r *Resource) bool { return e.unnamed[r] }

// Names returns the version of a resource that it would name on the next stream, "" if none.
func (e *Envoy) Names(n resource.Name) string { return e.named[n] }

// Ready says whether a cluster has been warm, so that routes can use it.
func (e *Envoy) Ready(cluster string) bool { return e.ready[cluster] }

// Asks says whether it has ever asked for a type.
func (e *Envoy) Asks(t resource.Type) bool { return e.begun[t] }

// Subscribes says whether it subscribes to a resource, by the wildcard or by name.
func (e *Envoy) Subscribes(n resource.Name) bool { return wild(n.Type) || e.names[n] }
