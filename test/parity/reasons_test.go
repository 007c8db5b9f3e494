package parity

// Why calls cannot end as without the mesh. Each reason names the option of Envoy, or says that Envoy has no option.
var (
	accepts = &reason{"The kernel accepts connections for Envoy's listener, and Envoy cannot refuse an accepted connection: it closes it at once. A command that " +
		"waits for a server must wait for an answer ([decision 083](decisions/083-connections-without-endpoints.md))."}
	notParsed = &reason{"Envoy's HTTP/1 codec rejects the response, as RFC 9112 allows: a `Transfer-Encoding` other than one `chunked`, a `Content-Length` " +
		"twice or invalid, either of them with 204, or a header name or value with bytes that RFC 9110 forbids. Envoy has no option for these " +
		"(`allow_chunked_length` is set, and does not help). The caller gets 502, which [is counted and reported](metrics.md)."}
	noHTTP09       = &reason{"Envoy rejects HTTP/0.9 responses; `accept_http_10` applies only to requests."}
	tooLarge       = &reason{"Sonde sets `max_response_headers_kb` to 256, because Envoy buffers the headers of each response ([decision 034](decisions/034-envoy-limits.md))."}
	noPath         = &reason{"Envoy rejects a path with a `#` or with bytes beyond ASCII, which RFC 3986 does not allow. It has no option for these bytes."}
	hopByHop       = &reason{"The version and `Connection` belong to a single connection (RFC 9110, section 7.6.1): Envoy keeps an HTTP/1.1 connection to the application."}
	ours           = &reason{"Sonde removes `x-envoy-*` headers, which would control Envoy, and forged `x-forwarded-client-cert` ([decision 034](decisions/034-envoy-limits.md))."}
	noHostName     = &reason{"RFC 9112, section 3.2, requires 400 for HTTP/1.1 without `Host`. Envoy has `default_host_for_http_10` only for HTTP/1.0."}
	bothLengths    = &reason{"Sonde does not set `allow_chunked_length` for requests: a server that reads the request differently could be deceived (RFC 9112, section 6.1)."}
	tooManyStreams = &reason{"`max_concurrent_streams` of an inbound is 320 for each connection of a client. The client itself holds further streams back, so Envoy has no statistic for them. " +
		"Between sidecars, and to the application, Envoy opens another connection for each 100 streams. The application's connection to its own sidecar allows 10,000."}
	manyHeaders = &reason{"Sonde leaves `max_headers_count` of inbounds at 100, as do Apache, Tomcat, gunicorn and Kestrel, because Envoy holds headers until the response " +
		"([decision 034](decisions/034-envoy-limits.md))."}
	oldResets = &reason{"Older Envoys turn a reset into a normal close."}
	noTrailer = &reason{"`header_key_format` keeps the case of headers, but not of trailers."}
	noClose   = &reason{"Envoy cannot close a connection in place of a response: it answers 503."}
	noNewName = &reason{"`upgrade_configs` lists protocols, without a wildcard: Sonde lists the protocols of public programs (WebSocket, SPDY/3.1, tcp, DERP, " +
		"tailscale-control-protocol, alpn, alpn-ping). Other upgrades get 403, which [is counted and reported](metrics.md). If the protocol of the port is `tcp`, all upgrades pass."}
	noH2C      = &reason{"Envoy always removes an upgrade to h2c (`ignore_http_11_upgrade`): the application continues with HTTP/1, as servers may. HTTP/2 without an upgrade passes."}
	relative   = &reason{"Envoy splits a URL in the request line into host and path (`allow_absolute_url`); without that option it answers 404."}
	noAsterisk = &reason{"Envoy routes only paths that begin with `/`, so no route matches `*`."}
	noLength   = &reason{"Envoy adds `content-length: 0` to a request without a body, unless the method is GET, HEAD, DELETE or CONNECT. It has no option for this."}
	earlyEnd   = &reason{"Listener filters of Envoy 1.40, such as the TLS inspector, close a connection if the client ends its half before its first bytes are inspected; " +
		"there is no option. [Server-first](reference/dataplane.md) ports and ports in mode STRICT have no inspector. Envoy's `listener.*.downstream_listener_filter_remote_close` counts these connections."}
)

// refused is the result of a response that Envoy rejects.
func refused(status string, why *reason) []difference {
	return []difference{{ways: throughIt, want: status, why: why}}
}
