package generator

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	// holdPause is the longest time between two attempts of a request that is held; Envoy waits half of it on average.
	holdPause = 50 * time.Millisecond
	// holdAttempts last for some 5 s: longer than it takes from the end of the last container until the sidecar gets its SIGTERM.
	holdAttempts = 200
)

// holdRoutes returns the routes that take the place of r once the agent says that the proxy ends (mesh.RuntimeEnding): requests that find no
// application any more wait for the end of Envoy, which closes their connection, as the application's end would have done. Envoy itself
// cannot close a connection in the place of an answer, and callers outside the mesh take its 503 for the application's
// (Envoy: api-v3/config/route/v3/route_components.proto, runtime_fraction). What an application may have seen is only sent again if its method
// is safe, as clients do whose connection is closed (RFC 9110, section 9.2.2).
func holdRoutes(r *routev3.Route) []*routev3.Route {
	safe := held(r, "connect-failure,reset-before-request,reset")
	safe.Match.Headers = []*routev3.HeaderMatcher{{
		Name: ":method", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: "GET|HEAD|OPTIONS"}},
		}},
	}}
	return []*routev3.Route{safe, held(r, "connect-failure,reset-before-request")}
}

func held(r *routev3.Route, on string) *routev3.Route {
	h := proto.CloneOf(r)
	h.Match.RuntimeFraction = &corev3.RuntimeFractionalPercent{
		DefaultValue: &typev3.FractionalPercent{Numerator: 0, Denominator: typev3.FractionalPercent_HUNDRED},
		RuntimeKey:   mesh.RuntimeEnding,
	}
	h.GetRoute().RetryPolicy = &routev3.RetryPolicy{
		RetryOn: on, NumRetries: wrapperspb.UInt32(holdAttempts),
		RetryBackOff: &routev3.RetryPolicy_RetryBackOff{BaseInterval: durationpb.New(holdPause), MaxInterval: durationpb.New(holdPause)},
	}
	return h
}
