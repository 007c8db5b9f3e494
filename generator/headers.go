package generator

import (
	"strings"

	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/xds/resource"
)

const (
	// headerClient is the header that names the client to the application. Envoy removes and sets it.
	headerClient = "x-forwarded-client-cert"
	// prefixEnvoy is the prefix of headers that control Envoy, or report what Envoy did.
	prefixEnvoy = "x-envoy-"
)

// serverProxy returns the connection manager of a port that other clients reach. It first drops headers with which a
// client could impersonate Envoy. CGI-like servers treat an underscore as a hyphen, so those spellings are dropped,
// too. All other headers with underscores belong to the application, and pass (Envoy:
// api-v3/extensions/http/early_header_mutation/header_mutation/v3/header_mutation.proto).
func serverProxy(stat, defaultHost string) *hcmv3.HttpConnectionManager {
	h := httpProxy(stat, defaultHost, fromClients())
	h.CommonHttpProtocolOptions.MaxHeadersCount = wrapperspb.UInt32(maxClientHeaders)
	mutations := &earlyv3.HeaderMutation{}
	for _, name := range spellings(headerClient) {
		mutations.Mutations = append(mutations.Mutations, removeHeaders(&matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Exact{Exact: name},
		}))
	}
	for _, prefix := range spellings(prefixEnvoy) {
		mutations.Mutations = append(mutations.Mutations, removeHeaders(&matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix},
		}))
	}
	h.EarlyHeaderMutationExtensions = []*corev3.TypedExtensionConfig{{
		Name:        "envoy.http.early_header_mutation.header_mutation",
		TypedConfig: resource.Any(mutations),
	}}
	return h
}

// spellings returns all spellings of a name with each hyphen kept or replaced by an underscore.
func spellings(name string) []string {
	head, tail, found := strings.Cut(name, "-")
	if !found {
		return []string{name}
	}
	var all []string
	for _, s := range spellings(tail) {
		all = append(all, head+"-"+s, head+"_"+s)
	}
	return all
}

func removeHeaders(m *matcherv3.StringMatcher) *mutationv3.HeaderMutation {
	return &mutationv3.HeaderMutation{Action: &mutationv3.HeaderMutation_RemoveOnMatch_{
		RemoveOnMatch: &mutationv3.HeaderMutation_RemoveOnMatch{KeyMatcher: m},
	}}
}
