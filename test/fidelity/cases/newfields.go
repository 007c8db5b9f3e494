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
	for _, c := range []struct {
		name    string
		want    Verdict
		probe   probeHandler
		servers servers
	}{
		{"HTTP2, 200", Success, protocol(corev1.HTTPProtocolHTTP2), http2c(reply2(200, "ok"))},
		{"HTTP2, 304", Warning, protocol(corev1.HTTPProtocolHTTP2), http2c(reply2(304, ""))},
		{"HTTP2, 503", Failure, protocol(corev1.HTTPProtocolHTTP2), http2c(reply2(503, "no"))},
		{"HTTP2 of a server of HTTP/2 with TLS", Failure, protocol(corev1.HTTPProtocolHTTP2), http2s(reply2(200, "ok"))},
		{"HTTP2, nothing listens", Failure, protocol(corev1.HTTPProtocolHTTP2), nothing},
		{"HTTP1 of a server of HTTP/2", Failure, protocol(corev1.HTTPProtocolHTTP1), http2c(reply2(200, "ok"))},
		{"TLS, SERVING", Success, mode(corev1.GRPCProbeModeTLS), http2s(health(1))},
		{"TLS, NOT_SERVING", Failure, mode(corev1.GRPCProbeModeTLS), http2s(health(2))},
		{"Plaintext", Success, mode(corev1.GRPCProbeModePlaintext), http2c(health(1))},
		{"Plaintext of a server with TLS", Failure, mode(corev1.GRPCProbeModePlaintext), http2s(health(1))},
	} {
		all = append(all, Case{Name: "field " + c.name, Want: Verdicts{c.want}, probe: c.probe, servers: c.servers})
	}
	return all
}
