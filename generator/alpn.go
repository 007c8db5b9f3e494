package generator

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	setstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	httpstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// offerHTTP2 lets an HTTP/2 request to a service of protocol http continue as HTTP/2: its connection to the server
// offers HTTP/2 by ALPN, instead of the protocols of the socket (see offeredALPN). Requests of HTTP/1 and HTTP/2 then
// use separate connections (Envoy: configuration/advanced/well_known_filter_state,
// envoy.network.application_protocols).
func offerHTTP2() *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{
		Name: "envoy.filters.http.set_filter_state",
		ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: resource.Any(&httpstatev3.Config{
			OnRequestHeaders: []*setstatev3.FilterStateValue{{
				Key: &setstatev3.FilterStateValue_ObjectKey{ObjectKey: "envoy.network.application_protocols"},
				Value: &setstatev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
					Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: inlineData([]byte(
						"%CEL(request.protocol == 'HTTP/2' ? '" + alpnMesh + "," + alpnHTTP2 + "' : '')%",
					))},
					OmitEmptyValues: true,
				}},
				SkipIfEmpty: true,
			}},
		})},
	}
}
