// Package adminv1 is the API between sondectl and the control plane.
package adminv1

// Kind is a kind of configuration of a proxy, in InspectDataplaneRequest and TypeStatus.
type Kind string

// The kinds. KindBootstrap is not an xDS resource.
const (
	KindListeners Kind = "listeners"
	KindClusters  Kind = "clusters"
	KindEndpoints Kind = "endpoints"
	KindRoutes    Kind = "routes"
	KindBootstrap Kind = "bootstrap"
)

// Kinds lists the kinds in the order in which they are shown.
func Kinds() []Kind {
	return []Kind{KindListeners, KindClusters, KindEndpoints, KindRoutes, KindBootstrap}
}
