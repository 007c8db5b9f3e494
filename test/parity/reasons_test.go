package parity

// Why calls cannot end as without the mesh. Each reason names the option of Envoy, or says that Envoy has no option.
var (
	accepts = &reason{"The kernel accepts a connection for Envoy's listener before Envoy knows of it, and Envoy cannot refuse what is accepted: it ends the connection " +
		"at once. A command that waits for a server must wait for its answer ([decision 083](decisions/083-connections-without-endpoints.md))."}
	notParsed = &reason{"Envoy's HTTP/1 codec refuses the answer, as RFC 9112 allows: it takes no `Transfer-Encoding` but one `chunked`, no `Content-Length` " +
		"twice or that is no number, neither with 204, and no header name or value with bytes that RFC 9110 forbids. It has no option for any of these " +
		"(`allow_chunked_length` is set, and does not help). The caller gets 502, which [is counted and reported](metrics.md)."}
	noHTTP09       = &reason{"Envoy takes no answer of HTTP/0.9; `accept_http_10` is about requests."}
	tooLarge       = &reason{"Sonde sets `max_response_headers_kb` to 256: Envoy holds them for each answer ([decision 034](decisions/034-envoy-limits.md))."}
	noPath         = &reason{"Envoy refuses a path with a `#` or with bytes beyond ASCII, which RFC 3986 does not have; it has no option for the second."}
	hopByHop       = &reason{"The version and `Connection` are each connection's own (RFC 9110, section 7.6.1): Envoy speaks HTTP/1.1 to the application, and keeps that connection."}
	ours           = &reason{"Sonde drops `x-envoy-*` and forged `x-forwarded-client-cert`, which would be orders to Envoy or words in its name ([decision 034](decisions/034-envoy-limits.md))."}
	noHostName     = &reason{"RFC 9112, section 3.2, has a server answer 400 to HTTP/1.1 without `Host`. For HTTP/1.0 there is `default_host_for_http_10`, for 1.1 nothing."}
	bothLengths    = &reason{"`allow_chunked_length` is not set for requests: a server behind a proxy that reads them otherwise could be deceived (RFC 9112, section 6.1)."}
	tooManyStreams = &reason{"`max_concurrent_streams` of an inbound: 320 on one connection of a client. The client waits by itself, before it sends a byte, " +
		"and Envoy cannot see that it does: it has no statistic of a single connection, and `upstream_rq_pending_active` counts what waits in Envoy. Nothing does there, " +
		"as it opens another connection for each 100 streams: between sidecars, and to the application. The application's own connection to its sidecar has 10,000."}
	manyHeaders = &reason{"Sonde leaves `max_headers_count` of what comes to an inbound at 100, as do Apache, Tomcat, gunicorn and Kestrel: Envoy holds headers until the request is answered " +
		"([decision 034](decisions/034-envoy-limits.md))."}
	oldResets = &reason{"Older Envoys end a connection that was reset as one that was closed."}
	noTrailer = &reason{"`header_key_format` keeps the case of headers and not of trailers."}
	noClose   = &reason{"Envoy cannot close a connection in the place of an answer: it answers 503."}
	noNewName = &reason{"`upgrade_configs` names each protocol, and knows no wildcard: Sonde names what public programs use (WebSocket, SPDY/3.1, tcp, DERP, " +
		"tailscale-control-protocol, alpn, alpn-ping). Others get 403, which [is counted and reported](metrics.md). Protocol tcp of the port passes all."}
	noH2C      = &reason{"Envoy always drops an upgrade to h2c (`ignore_http_11_upgrade`): the application goes on by HTTP/1, as servers may. HTTP/2 without an upgrade passes."}
	relative   = &reason{"Envoy takes the path and the host out of a URL in the request line (`allow_absolute_url`); without that it answers 404."}
	noAsterisk = &reason{"Envoy routes only paths that begin with `/`: no route can match `*`."}
	noLength   = &reason{"Envoy adds `content-length: 0` to a request without a body whose method is not GET, HEAD, DELETE or CONNECT. It has no option for it."}
	earlyEnd   = &reason{"Envoy 1.40's listener filters, of which the TLS inspector is one, end a connection whose client ends its half before its first bytes are inspected; " +
		"there is no option. A port that is [server-first](reference/dataplane.md) has no inspector, and neither has mode STRICT. `listener.*.downstream_listener_filter_remote_close` of Envoy counts them."}
)

// refused is the result of an answer that Envoy does not accept.
func refused(status string, why *reason) []difference {
	return []difference{{ways: throughIt, want: status, why: why}}
}
