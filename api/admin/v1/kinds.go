// Package adminv1 is the API between sondectl and the control plane.
package adminv1

// MaxListed is the maximum number of entries in one response. A longer list says how many entries it leaves out.
const MaxListed = 5000

// MaxListedProbes is the maximum number of probes of all proxies in one response.
const MaxListedProbes = 20_000

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

// Kinds lists the kinds in the order for display.
func Kinds() []Kind {
	return []Kind{KindListeners, KindClusters, KindEndpoints, KindRoutes, KindBootstrap}
}
