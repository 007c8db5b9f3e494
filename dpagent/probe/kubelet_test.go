package probe_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// serveH2C starts an application that supports only HTTP/2 without TLS.
func (p *pod) serveH2C(answer int) int32 {
	p.t.Helper()
	l := p.listen(localhost.String())
	s := &http.Server{
		Protocols: new(http.Protocols), ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(answer) }),
	}
	s.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l) // returns an error when closed
	}()
	p.t.Cleanup(func() {
		_ = s.Close()
		<-served
	})
	return int32(port(l))
}

// serveLate starts an application that begins to listen after a while.
func (p *pod) serveLate(after time.Duration) int32 {
	p.t.Helper()
	free := p.closedPort()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-time.After(after):
		case <-p.t.Context().Done():
			return
		}
		l, err := p.network.Listen(p.t.Context(), "tcp", fmt.Sprintf("%s:%d", localhost, free))
		if err != nil {
			p.t.Error(err)
			return
		}
		s := grpc.NewServer()
		says(healthpb.HealthCheckResponse_SERVING, nil)(s)
		go func() {
			<-p.t.Context().Done()
			s.Stop()
		}()
		_ = s.Serve(l) // until the server stops
	}()
	p.t.Cleanup(func() { <-stopped })
	return free
}

func (p *pod) serveGRPCByTLS() int32 {
	p.t.Helper()
	l := p.listen(localhost.String())
	p.serveGRPCAt(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{expired(p.t)}, NextProtos: []string{"h2"}}),
		says(healthpb.HealthCheckResponse_SERVING, nil))
	return int32(port(l))
}

// TestVerdictOfTheVersionThatAsks checks that each kubelet version gets the verdict that its own code would reach.
func TestVerdictOfTheVersionThatAsks(t *testing.T) {
	grpcAt := func(port int32) mesh.Probe { return mesh.Probe{TimeoutSeconds: 4, GRPC: &mesh.GRPCProbe{Port: port}} }
	h2cAt := func(port int32) mesh.Probe {
		return mesh.Probe{TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Port: port, Protocol: mesh.HTTPGetHTTP2}}
	}
	silent := func(p *pod) int32 {
		return p.apply(localhost.String(), func(c net.Conn) { _, _ = c.Read(make([]byte, 1<<20)) }).port
	}
	type answers map[string]string // by user agent: the verdict, and a part of the reason
	tests := map[string]struct {
		probe func(*pod) mesh.Probe
		want  answers
	}{
		"gRPC server that listens late": {func(p *pod) mesh.Probe { return grpcAt(p.serveLate(1500 * time.Millisecond)) }, answers{
			"kube-probe/1.33+": "success", "kube-probe/1.37": "success", "curl/8.1": "success", "kube-probe/x": "success",
			"kube-probe/1.38": "failure error: failed to connect service at", "kube-probe/1.99": "failure connect: connection refused",
		}},
		"gRPC, refused": {func(p *pod) mesh.Probe { return grpcAt(p.closedPort()) }, answers{
			"kube-probe/1.37": "failure timeout: failed to connect service", "kube-probe/1.38+": "failure connect: connection refused",
		}},
		"gRPC, never answered": {func(p *pod) mesh.Probe { return grpcAt(silent(p)) }, answers{
			"kube-probe/1.36": "failure timeout: failed to connect service", "kube-probe/1.38": "failure timeout: health rpc did not complete within 4s",
		}},
		"gRPC, Unavailable by the application": {func(p *pod) mesh.Probe {
			return grpcAt(p.serveGRPC(says(0, status.Error(codes.Unavailable, "SECRET"))))
		}, answers{
			"kube-probe/1.37": "failure error: health rpc probe failed: rpc error: code = Unavailable", "kube-probe/1.38": "failure error: failed to connect service at",
		}},
		"gRPC by TLS": {func(p *pod) mesh.Probe {
			of := grpcAt(p.serveGRPCByTLS())
			of.TimeoutSeconds, of.GRPC.Mode = 1, mesh.GRPCModeTLS
			return of
		}, answers{"kube-probe/1.36": "failure", "kube-probe/1.37": "success", "kube-probe/1.38": "success", "curl/8.1": "success"}},
		"h2c": {func(p *pod) mesh.Probe { return h2cAt(p.serveH2C(http.StatusNoContent)) }, answers{
			"kube-probe/1.36": "failure", "kube-probe/1.37": "success", "curl/8.1": "success",
		}},
		"h2c, 500": {func(p *pod) mesh.Probe { return h2cAt(p.serveH2C(http.StatusInternalServerError)) }, answers{
			"kube-probe/1.37": "failure 500",
		}},
		"h2c that is HTTP/1.1": {func(p *pod) mesh.Probe { return h2cAt(p.answer(ok).port) }, answers{
			"kube-probe/1.36": "success", "kube-probe/1.37": "failure",
		}},
	}
	for name, tc := range tests {
		for agent, want := range tc.want {
			virtual.Run(t, name+", "+agent, func(t *testing.T) {
				pod := newPod(t)
				p := tc.probe(pod)
				p.SetDefaults()
				verdict, text := kubelet{pod: pod, agent: agent}.probe(pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), p.VirtualPath(), "")
				wanted, reason, _ := strings.Cut(want, " ")
				if verdict != wanted || !strings.Contains(text, reason) || strings.Contains(text, "SECRET") {
					t.Errorf("verdict = %s %q, want %s", verdict, text, want)
				}
			})
		}
	}
}
