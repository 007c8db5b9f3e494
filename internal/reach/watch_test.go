package reach

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// ask calls a method of a service that nobody has, over TLS, and returns what it is told.
func ask(t *testing.T, service Service, address string, roots *x509.CertPool) error {
	t.Helper()
	watch := &Watch{Service: service, Address: address}
	conn, err := grpc.NewClient("dns:///"+address,
		grpc.WithTransportCredentials(watched{credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "example.com", MinVersion: tls.VersionTLS13}), watch}),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
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

// servers of the control plane: plain HTTP as for health, HTTP over TLS as the webhook, and gRPC as the others.
type servers struct {
	roots                 *x509.CertPool
	health, webhook, grpc string
}

func start(t *testing.T) servers {
	t.Helper()
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.EnableHTTP2 = true
	secure.StartTLS()
	t.Cleanup(secure.Close)
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&secure.TLS.Certificates[0])))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return servers{roots: roots, health: plain.Listener.Addr().String(), webhook: secure.Listener.Addr().String(), grpc: l.Addr().String()}
}

// TestExplain shows what is said of each port that is not the one that a client wants, and of addresses at which there is nobody.
func TestExplain(t *testing.T) {
	s := start(t)
	const agents, admin = "the one for agents and ADS has port 5678, or that of --agents-port of sonde-cp", "the admin API has port 5681, or that of --admin-port of sonde-cp"
	tests := map[string]struct {
		service Service
		address string
		roots   *x509.CertPool
		kind    Kind
		want    string
	}{
		"agent: admin":           {Agents, s.grpc, s.roots, WrongPort, "AT is the control plane's port for the admin API: " + agents},
		"agent: health":          {Agents, s.health, s.roots, WrongPort, "AT does not speak TLS, as the control plane's port for health and metrics: " + agents},
		"agent: webhook":         {Agents, s.webhook, s.roots, WrongPort, "AT is the control plane's port for the admission webhook: " + agents},
		"sondectl: agents":       {Admin, s.grpc, s.roots, WrongPort, "AT is the control plane's port for agents and ADS: " + admin},
		"sondectl: health":       {Admin, s.health, s.roots, WrongPort, "AT does not speak TLS, as the control plane's port for health and metrics: " + admin},
		"sondectl: webhook":      {Admin, s.webhook, s.roots, WrongPort, "AT is the control plane's port for the admission webhook: " + admin},
		"another CA":             {Admin, s.grpc, x509.NewCertPool(), Mistrusted, "the control plane at AT is not the one that --ca-cert-file names: x509: certificate signed by unknown authority"},
		"nobody there":           {Admin, "127.0.0.1:1", s.roots, Unreachable, "no control plane at AT: dial tcp 127.0.0.1:1: connect: connection refused"},
		"a name without address": {Agents, "no-such-host.invalid:5678", s.roots, Unreachable, `no control plane at AT: the name "no-such-host.invalid" does not resolve: `},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := ask(t, tc.service, tc.address, tc.roots)
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

// TestTheWebhookOfAnotherCA shows that the number of a port helps where its certificate says nothing.
func TestTheWebhookOfAnotherCA(t *testing.T) {
	w := &Watch{Service: Agents, Address: "cp:5443"}
	w.Handshaken(&tls.CertificateVerificationError{Err: errors.New("unknown authority")})
	want := "the control plane at cp:5443 is not the one that --ca-cert-file names: unknown authority; " +
		"5443 is usually the port for the admission webhook: the one for agents and ADS has port 5678, or that of --agents-port of sonde-cp"
	if got := w.Explain(status.Error(codes.Unavailable, "x")); got.Error() != want {
		t.Errorf("Explain() = %q, want %q", got, want)
	}
}

// TestTheCodeStays shows that clients can still tell errors apart by their codes.
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
