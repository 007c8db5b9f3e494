package reach

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/internal/testing/certificate"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// ask calls a method of an unknown service, over TLS, and returns the explained error.
func ask(t *testing.T, n *virtual.Network, service Service, address string, roots *x509.CertPool) error {
	t.Helper()
	watch := &Watch{Service: service, Address: address}
	conn, err := grpc.NewClient("dns:///"+address,
		grpc.WithTransportCredentials(watched{credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: serverName, MinVersion: tls.VersionTLS13}), watch}),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := n.DialFrom("10.0.0.2")(ctx, "tcp", address)
			watch.Dialed(err)
			return conn, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // the call has ended
	var none []byte
	return watch.Explain(conn.Invoke(t.Context(), "/sonde.some.v1.Service/Call", &none, &none, grpc.ForceCodec(raw{})))
}

// raw is a codec of messages without content.
type raw struct{}

func (raw) Marshal(any) ([]byte, error) { return nil, nil }
func (raw) Unmarshal([]byte, any) error { return nil }
func (raw) Name() string                { return "raw" }

type watched struct {
	credentials.TransportCredentials
	watch *Watch
}

func (w watched) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, raw)
	w.watch.Handshaken(err)
	return conn, info, err
}

func (w watched) Clone() credentials.TransportCredentials {
	return watched{w.TransportCredentials.Clone(), w.watch}
}

const serverName = "example.com"

// The servers of the control plane: plain HTTP for health, HTTP over TLS for the webhook, and gRPC for the others.
const healthAt, webhookAt, grpcAt = "10.0.0.1:1001", "10.0.0.1:1002", "10.0.0.1:1003"

// start starts the servers, and returns the roots that trust them.
func start(t *testing.T, n *virtual.Network) (roots *x509.CertPool) {
	t.Helper()
	secured, roots := certificate.Server(t, serverName)
	serve := func(at string, serve func(net.Listener) error, stop func()) {
		l, err := n.Listen(t.Context(), "tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = serve(l) // returns an error when closed
		}()
		t.Cleanup(func() { stop(); <-ended })
	}
	plain := &http.Server{Handler: http.NotFoundHandler()}
	serve(healthAt, plain.Serve, func() { _ = plain.Close() })
	secure := &http.Server{Handler: http.NotFoundHandler(), TLSConfig: secured}
	serve(webhookAt, func(l net.Listener) error { return secure.ServeTLS(l, "", "") }, func() { _ = secure.Close() })
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&secured.Certificates[0])))
	serve(grpcAt, server.Serve, server.Stop)
	return roots
}

// TestExplain checks the errors for each wrong port of the control plane, and for addresses without a server.
func TestExplain(t *testing.T) {
	const agents, admin = "the one for agents and ADS has port 5678, or the one set by --agents-port of sonde-cp", "the admin API has port 5681, or the one set by --admin-port of sonde-cp"
	tests := map[string]struct {
		service Service
		address string
		trusts  bool
		kind    Kind
		want    string
	}{
		"agent: admin":      {Agents, grpcAt, true, WrongPort, "AT is the control plane's port for the admin API: " + agents},
		"agent: health":     {Agents, healthAt, true, WrongPort, "AT does not speak TLS, as the control plane's port for health and metrics: " + agents},
		"agent: webhook":    {Agents, webhookAt, true, WrongPort, "AT is the control plane's port for the admission webhook: " + agents},
		"sondectl: agents":  {Admin, grpcAt, true, WrongPort, "AT is the control plane's port for agents and ADS: " + admin},
		"sondectl: health":  {Admin, healthAt, true, WrongPort, "AT does not speak TLS, as the control plane's port for health and metrics: " + admin},
		"sondectl: webhook": {Admin, webhookAt, true, WrongPort, "AT is the control plane's port for the admission webhook: " + admin},
		"another CA":        {Admin, grpcAt, false, Mistrusted, "the control plane at AT is not the one that --ca-cert-file names: x509: certificate signed by unknown authority"},
		"no server":         {Admin, "10.0.0.1:1", true, Unreachable, "no control plane at AT: dial tcp 10.0.0.1:1: connect: connection refused"},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			n := virtual.NewNetwork()
			roots := start(t, n)
			if !tc.trusts {
				roots = x509.NewCertPool()
			}
			err := ask(t, n, tc.service, tc.address, roots)
			explained, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("error = %v", err)
			}
			if got := strings.ReplaceAll(err.Error(), tc.address, "AT"); !strings.HasPrefix(got, strings.ReplaceAll(tc.want, tc.address, "AT")) {
				t.Errorf("error = %q, want %q", got, tc.want)
			}
			if explained.Kind != tc.kind {
				t.Errorf("kind = %d, want %d", explained.Kind, tc.kind)
			}
		})
	}
}

func TestANameWithoutAddress(t *testing.T) {
	w := &Watch{Service: Agents, Address: "no-such-host.invalid:5678"}
	w.Dialed(&net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "no-such-host.invalid"}})
	err := w.Explain(status.Error(codes.Unavailable, "x"))
	want := `no control plane at no-such-host.invalid:5678: the name "no-such-host.invalid" does not resolve: no such host`
	if explained, ok := errors.AsType[*Error](err); !ok || explained.Kind != Unreachable || err.Error() != want {
		t.Errorf("Explain() = %v, want %s", err, want)
	}
}

// TestTheWebhookOfAnotherCA checks that the port number is used if the certificate does not identify the webhook.
func TestTheWebhookOfAnotherCA(t *testing.T) {
	w := &Watch{Service: Agents, Address: "cp:5443"}
	w.Handshaken(&tls.CertificateVerificationError{Err: errors.New("unknown authority")})
	want := "the control plane at cp:5443 is not the one that --ca-cert-file names: unknown authority; " +
		"5443 is usually the port for the admission webhook: the one for agents and ADS has port 5678, or the one set by --agents-port of sonde-cp"
	if got := w.Explain(status.Error(codes.Unavailable, "x")); got.Error() != want {
		t.Errorf("Explain() = %q, want %q", got, want)
	}
}

// TestTheCodeStays checks that clients can still distinguish errors by their codes.
func TestTheCodeStays(t *testing.T) {
	w := &Watch{Service: Agents, Address: "cp:5678"}
	tests := map[string]struct {
		err  error
		code codes.Code
		want string
	}{
		"refused":     {status.Error(codes.PermissionDenied, "another workload"), codes.PermissionDenied, "another workload"},
		"wrapped":     {fmt.Errorf("read: %w", status.Error(codes.Unauthenticated, "expired")), codes.Unauthenticated, "read: expired"},
		"no answer":   {status.Error(codes.DeadlineExceeded, "context deadline exceeded"), codes.DeadlineExceeded, "the control plane at cp:5678 did not answer in time"},
		"a method":    {status.Error(codes.Unimplemented, "unknown method Drain"), codes.Unimplemented, "unknown method Drain"},
		"no status":   {errors.New("no token"), codes.Unknown, "no token"},
		"not at once": {nil, codes.OK, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := w.Explain(tc.err)
			if code := status.Code(got); code != tc.code {
				t.Errorf("code = %s, want %s", code, tc.code)
			}
			if text := fmt.Sprint(got); got != nil && text != tc.want {
				t.Errorf("Explain() = %q, want %q", text, tc.want)
			}
		})
	}
}
