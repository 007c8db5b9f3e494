package generator

import (
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// readinessListener answers 200: it comes with all other listeners, so its answer says that they are in place. It has no
// traffic direction, since a drain of what comes in does not concern it.
func readinessListener() *listenerv3.Listener {
	const ok = 200
	return &listenerv3.Listener{
		Name:       NameReadiness,
		Address:    pipeAddress(PipeReady, pipeModePrivate),
		StatPrefix: NameReadiness,
		FilterChains: []*listenerv3.FilterChain{{
			Name: NameReadiness,
			Filters: []*listenerv3.Filter{withRoutes(httpProxy(NameReadiness, ""), &routev3.RouteConfiguration{
				Name: NameReadiness,
				VirtualHosts: []*routev3.VirtualHost{{
					Name:    NameReadiness,
					Domains: []string{"*"},
					Routes: []*routev3.Route{{
						Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: pathReady}},
						Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: ok}},
					}},
				}},
			})},
		}},
	}
}
