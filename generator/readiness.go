package generator

import (
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// readinessListener responds with 200. It is sent together with all other listeners, so a response means that they are
// installed. It has no traffic direction, so that draining the inbound listeners does not affect it.
func readinessListener() *listenerv3.Listener {
	const ok = 200
	return answersAlways(&listenerv3.Listener{
		Name:       nameReadiness,
		Address:    pipeAddress(mesh.SocketReady, pipeModePrivate),
		StatPrefix: nameReadiness,
		FilterChains: []*listenerv3.FilterChain{{
			Name: nameReadiness,
			Filters: []*listenerv3.Filter{withRoutes(httpProxy(nameReadiness, "", fromClients()), &routev3.RouteConfiguration{
				Name: nameReadiness,
				VirtualHosts: []*routev3.VirtualHost{{
					Name:    nameReadiness,
					Domains: []string{"*"},
					Routes: []*routev3.Route{{
						Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: mesh.PathEnvoyReady}},
						Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: ok}},
					}},
				}},
			})},
		}},
	})
}
