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
	// holdPause is the longest pause between two attempts of a held request; Envoy waits half of it on average.
	holdPause = 50 * time.Millisecond
	// holdAttempts last for about 5 s. This is longer than the time between the end of the last container and the
	// sidecar's SIGTERM.
	holdAttempts = 200
)

// holdRoutes returns the routes that replace r once the agent reports that the proxy ends (mesh.RuntimeEnding).
// Requests whose application has exited wait for the end of Envoy, which closes their connection, as the application's
// exit would have done without Envoy. Envoy itself cannot close a connection instead of responding, and callers outside
// the mesh would mistake its 503 for the application's (Envoy: api-v3/config/route/v3/route_components.proto,
// runtime_fraction). A request that an application may have seen is only retried if its method is safe, like clients do
// on a closed connection (RFC 9110, section 9.2.2).
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
		RetryBackOff: &routev3.RetryPolicy_RetryBackOff{BaseInterval: durationpb.New(holdPause),
			MaxInterval: durationpb.New(holdPause)},
	}
	return h
}
