package cases

import corev1 "k8s.io/api/core/v1"

// newFields are cases of httpGet.protocol and grpc.mode, which are alpha in Kubernetes 1.37.
func newFields() []Case {
	probe := func(of probeHandler, change func(*corev1.ProbeHandler)) probeHandler {
		return func(p PodAddress) corev1.ProbeHandler {
			h := of(p)
			change(&h)
			return h
		}
	}
	protocol := func(name corev1.HTTPProtocol) probeHandler {
		return probe(get("/probe?a=b", header("X-A", "1")), func(h *corev1.ProbeHandler) { h.HTTPGet.Protocol = &name })
	}
	mode := func(name corev1.GRPCProbeMode) probeHandler {
		return probe(grpcHealth("s"), func(h *corev1.ProbeHandler) { h.GRPC.Mode = &name })
	}
	var all []Case
	// Kubelets up to 1.36 ignore these fields: they use HTTP/1.1, without TLS.
	const unread = Failure
	for _, c := range []struct {
		name          string
		want, until36 Verdict
		probe         probeHandler
		servers       servers
	}{
		{"HTTP2, 200", Success, unread, protocol(corev1.HTTPProtocolHTTP2), http2c(reply2(200, "ok"))},
		{"HTTP2, 304", Warning, unread, protocol(corev1.HTTPProtocolHTTP2), http2c(reply2(304, ""))},
		{"HTTP2, 503", Failure, unread, protocol(corev1.HTTPProtocolHTTP2), http2c(reply2(503, "no"))},
		{"HTTP2 of a server of HTTP/2 with TLS", Failure, unread, protocol(corev1.HTTPProtocolHTTP2), http2s(reply2(200, "ok"))},
		{"HTTP2, nothing listens", Failure, unread, protocol(corev1.HTTPProtocolHTTP2), nothing},
		{"HTTP1 of a server of HTTP/2", Failure, Failure, protocol(corev1.HTTPProtocolHTTP1), http2c(reply2(200, "ok"))},
		{"TLS, SERVING", Success, unread, mode(corev1.GRPCProbeModeTLS), http2s(health(1))},
		{"TLS, NOT_SERVING", Failure, unread, mode(corev1.GRPCProbeModeTLS), http2s(health(2))},
		{"Plaintext", Success, Success, mode(corev1.GRPCProbeModePlaintext), http2c(health(1))},
		{"Plaintext of a server with TLS", Failure, Failure, mode(corev1.GRPCProbeModePlaintext), http2s(health(1))},
	} {
		added := Case{Name: "field " + c.name, Want: Verdicts{c.want}, Until36: Verdicts{c.until36}, probe: c.probe, servers: c.servers}
		if added.LastRequest = c.probe(PodAddress{}).GRPC != nil; added.LastRequest && c.want == Failure {
			added.timeout = 1 // until then, gRPC connects again and again
		}
		all = append(all, added)
	}
	return all
}
