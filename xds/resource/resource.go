// Package resource holds Envoy resources, encoded once and shared by all streams that send them.
package resource

import (
	"cmp"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/types/known/anypb"
)

// Type is a type URL of the xDS transport protocol.
type Type string

// The types that Sonde serves.
const (
	Cluster  Type = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	Endpoint Type = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	Listener Type = "type.googleapis.com/envoy.config.listener.v3.Listener"
	Route    Type = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
)

// Types lists the types in the order in which they are sent.
func Types() []Type { return []Type{Cluster, Endpoint, Listener, Route} }

// index returns the position in Types, or -1 for a type that is not served.
func (t Type) index() int {
	switch t {
	case Cluster:
		return 0
	case Endpoint:
		return 1
	case Listener:
		return 2
	case Route:
		return 3
	}
	return -1
}

// Short returns the name for logs and metrics: cluster, endpoint, listener or route.
func (t Type) Short() string {
	switch t {
	case Cluster:
		return "cluster"
	case Endpoint:
		return "endpoint"
	case Listener:
		return "listener"
	case Route:
		return "route"
	}
	return string(t)
}

// Resource is one Envoy resource, encoded. It never changes.
type Resource struct {
	Type Type
	Name string
	// Version is the hash of Body.
	Version string
	Body    *anypb.Any
	// Entry is the resource encoded as a field of a DeltaDiscoveryResponse. All streams that send it share these bytes.
	Entry []byte
	// Endpoints is the name of the ClusterLoadAssignment that a Cluster asks for; empty for any other resource.
	Endpoints string
	// Peers are the identities that a Cluster accepts from its endpoints, sorted; they are in Body, too. See WithPeers.
	Peers []string
	// Inbound is the address of a Listener for inbound traffic; the zero AddrPort for any other resource.
	Inbound netip.AddrPort
	// Outbound is the address that a Listener for the application's own traffic binds; the zero AddrPort for any other
	// resource.
	Outbound netip.AddrPort
}

// NodeDrainTime is the node metadata key for the time, as a Go duration, that the node's Envoy keeps the connections of
// a replaced listener. Envoy's requests do not include its --drain-time-s.
const NodeDrainTime = "sonde.dev/drain-time"

// NodeRecords is the node metadata key that tells whether the agent reads Envoy's records of plaintext connections:
// true or false. If it is missing, nothing is recorded.
const NodeRecords = "sonde.dev/plaintext-records"

// Metadata is the content of a node's metadata that affects its resources.
type Metadata struct {
	// Records is the value of NodeRecords.
	Records bool
}

// WithPeers returns a copy of a Cluster with the identities it accepts, sorted.
func (r *Resource) WithPeers(peers []string) *Resource {
	with := *r
	with.Peers = peers
	return &with
}

// Key returns the name of the resource within a Set.
func (r *Resource) Key() Name { return Name{Type: r.Type, Name: r.Name} }

// Name of a resource together with its type.
type Name struct {
	Type Type
	Name string
}

func (n Name) compare(m Name) int {
	return cmp.Or(cmp.Compare(n.Type, m.Type), cmp.Compare(n.Name, m.Name))
}

// Desired holds the desired resources of a proxy. Shared is the same pointer for all proxies that see the same
// services, and Node for all of them on one node; no name is in two sets. The zero value means that the proxy is
// unknown.
type Desired struct {
	Shared, Node, Own *Set
	// For is the metadata that Own was made for.
	For Metadata
}

// Known reports whether the proxy is known, even if it should have no resources.
func (d Desired) Known() bool { return d.Shared != nil || d.Own != nil }

// Get returns the resource with a name, nil if not found.
func (d Desired) Get(n Name) *Resource {
	if r := d.Own.Get(n); r != nil {
		return r
	}
	if r := d.Node.Get(n); r != nil {
		return r
	}
	return d.Shared.Get(n)
}

// Of returns the resources of a type, sorted by name.
func (d Desired) Of(t Type) []*Resource {
	all := slices.Concat(d.Shared.Of(t), d.Node.Of(t), d.Own.Of(t))
	slices.SortFunc(all, func(a, b *Resource) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
