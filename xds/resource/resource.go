// Package resource holds Envoy resources, encoded once and shared by all streams that send them.
package resource

import (
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

// Types lists them in the order in which they are sent.
func Types() []Type { return []Type{Cluster, Endpoint, Listener, Route} }

// Resource is one Envoy resource, encoded. It never changes.
type Resource struct {
	Type Type
	Name string
	// Version is the hash of Body.
	Version string
	Body    *anypb.Any
}

// Name of a resource together with its type.
type Name struct {
	Type Type
	Name string
}

// Desired is what a proxy should have. Shared is the same pointer for all proxies that see the same; the two are
// always swapped together, and no name is in both. The zero value means that the proxy is not known yet.
type Desired struct{ Shared, Own *Set }
