package parity

// Why calls cannot end as without the mesh. Each reason names the option of Envoy, or says that Envoy has no option.
var (
	accepts = &reason{"The kernel accepts connections for Envoy's listener, and Envoy cannot refuse an accepted " +
		"connection. Envoy closes it at once, or answers an HTTP request with 503. A command that waits for a server " +
		"must wait for an answer ([decision 083](decisions/083-connections-without-endpoints.md))."}
	notParsed = &reason{"Envoy's HTTP/1 codec rejects these responses, as RFC 9112 allows, and the caller gets 502. " +
		"It rejects: a `Transfer-Encoding` other than a single `chunked`; a repeated or invalid `Content-Length`; " +
		"`Transfer-Encoding`, or a `Content-Length` other than 0, with 204; bytes in a header that RFC 9110 forbids. " +
		"Envoy has no option to accept them. The agent counts them ([`sonde_dpagent_refused_total`](metrics.md))."}
	noHTTP09 = &reason{"Envoy rejects HTTP/0.9 responses. The option `accept_http_10` applies only to requests."}
	tooLarge = &reason{"Sonde limits the headers of a response to 256 KiB (`max_response_headers_kb`), because Envoy " +
		"buffers them ([decision 034](decisions/034-envoy-limits.md))."}
	noPath = &reason{"Envoy rejects a path with a `#` or with bytes beyond ASCII, which RFC 3986 does not allow. " +
		"It has no option for bytes beyond ASCII."}
	hopByHop = &reason{"The HTTP version and `Connection` apply to one connection (RFC 9110, section 7.6.1). " +
		"Envoy has its own connection to the application, with HTTP/1.1, and keeps it open."}
	ours = &reason{"Sonde removes `x-envoy-*` headers, which would control Envoy, and forged " +
		"`x-forwarded-client-cert` headers ([decision 034](decisions/034-envoy-limits.md))."}
	noHostName = &reason{"RFC 9112, section 3.2, requires 400 for an HTTP/1.1 request without `Host`. The option " +
		"`default_host_for_http_10` applies only to HTTP/1.0."}
	bothLengths = &reason{"With both headers, Envoy and a server could find different ends of the request, which allows " +
		"request smuggling (RFC 9112, section 6.1). So Sonde does not set `allow_chunked_length` for requests, and " +
		"Envoy rejects them."}
	tooManyStreams = &reason{"An inbound allows 320 streams on each connection of a client " +
		"(`max_concurrent_streams`, [decision 034](decisions/034-envoy-limits.md)). The client itself delays further " +
		"streams, so no statistic of Envoy counts them. A client with a sidecar may open 10,000 streams on a " +
		"connection: its Envoy opens a connection to the service for each 100 streams."}
	manyHeaders = &reason{"Sonde limits a request to an inbound to 100 headers (`max_headers_count`), because Envoy " +
		"holds them until the response ([decision 034](decisions/034-envoy-limits.md)). Apache, Tomcat, gunicorn and " +
		"Kestrel have the same limit."}
	oldResets = &reason{"Envoy before the version in the table turns a reset into a normal close."}
	noTrailer = &reason{"The option `header_key_format` keeps the case of headers, but not of trailers."}
	noClose   = &reason{"If the application closes the connection without a response, Envoy always answers 503."}
	noNewName = &reason{"Envoy allows only the upgrades in `upgrade_configs`, which has no wildcard. Sonde lists the " +
		"protocols of public programs: WebSocket, SPDY/3.1, tcp, DERP, tailscale-control-protocol, alpn, alpn-ping. " +
		"Other upgrades get 403, which the agent counts ([`sonde_dpagent_refused_total`](metrics.md)). If the " +
		"protocol of the port is `tcp`, all upgrades pass."}
	noH2C = &reason{"Envoy removes every upgrade to h2c, regardless of `ignore_http_11_upgrade`. The application then " +
		"answers with HTTP/1, as a server may. HTTP/2 without an upgrade passes."}
	relative = &reason{"Envoy splits a URL in the request line into host and path (`allow_absolute_url`). Without " +
		"that option it answers 404."}
	noAsterisk = &reason{"Envoy routes only paths that begin with `/`, so no route matches `*`."}
	noLength   = &reason{"Envoy adds `content-length: 0` to a request without a body, unless the method is GET, HEAD, " +
		"DELETE or CONNECT. It has no option for this."}
	earlyEnd = &reason{"In mode PERMISSIVE, Envoy's TLS inspector reads the first bytes of each connection. Envoy " +
		"1.40 closes a connection whose client half-closes before these bytes are inspected, and has no option for " +
		"this. The statistic `listener.*.downstream_listener_filter_remote_close` counts these connections. " +
		"[Server-first ports](reference/dataplane.md) and ports in mode STRICT have no inspector."}
)

// refused is the result of a response that Envoy rejects.
func refused(status string, why *reason) []difference {
	return []difference{{ways: throughIt, want: status, why: why}}
}
