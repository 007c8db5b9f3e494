// Package adminv1 is what sondectl and the control plane say to each other.
package adminv1

// Kind of what a proxy has, as InspectDataplaneRequest and TypeStatus name it.
type Kind string

// The kinds. KindBootstrap is no xDS resource.
const (
	KindListeners Kind = "listeners"
	KindClusters  Kind = "clusters"
	KindEndpoints Kind = "endpoints"
	KindRoutes    Kind = "routes"
	KindBootstrap Kind = "bootstrap"
)

// Kinds lists them, in the order in which they are shown.
func Kinds() []Kind {
	return []Kind{KindListeners, KindClusters, KindEndpoints, KindRoutes, KindBootstrap}
}
