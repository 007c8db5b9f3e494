package admin

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/internal/jsonlog"
	"github.com/sonde-mesh/sonde/internal/logtest"
)

func TestEveryCallNeedsTheToken(t *testing.T) {
	f := newFakes(t)
	// The API has no stream yet. A future one must not be open to everybody.
	address := serve(t, f.Options, func(s *Server) { healthv1.RegisterHealthServer(s.grpc, health.NewServer()) })
	conn := dial(t, address, f.roots)
	api, watcher := adminv1.NewAdminServiceClient(conn), healthv1.NewHealthClient(conn)
	tests := map[string]struct {
		header []string
		want   codes.Code
	}{
		"right":           {[]string{"Bearer " + testToken}, codes.OK},
		"small letters":   {[]string{"bearer " + testToken}, codes.OK},
		"none":            {nil, codes.Unauthenticated},
		"wrong":           {[]string{"Bearer wrong"}, codes.Unauthenticated},
		"beginning of it": {[]string{"Bearer " + testToken[:4]}, codes.Unauthenticated},
		"other scheme":    {[]string{"Basic " + testToken}, codes.Unauthenticated},
		"two":             {[]string{"Bearer wrong", "Bearer " + testToken}, codes.Unauthenticated},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for _, value := range tc.header {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", value)
			}
			if _, err := api.ListMeshes(ctx, &adminv1.ListMeshesRequest{}); status.Code(err) != tc.want {
				t.Errorf("unary call: %v, want %s", err, tc.want)
			}
			if tc.want == codes.Unauthenticated && name != "wrong" {
				return // each wrong token counts, and one is enough for streams
			}
			stream, err := watcher.Watch(ctx, &healthv1.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); status.Code(err) != tc.want {
				t.Errorf("stream: %v, want %s", err, tc.want)
			}
		})
	}
	if log := f.log.String(); !strings.Contains(log, "admin token refused") || strings.Contains(log, testToken) {
		t.Errorf("the log must tell of refused tokens, and hold none: %s", log)
	}
}

// refusing is an Access that refuses all tokens.
type refusing struct{}

func (refusing) Authorize(context.Context, string, adminv1.Right) (string, error) {
	return "", status.Error(codes.PermissionDenied, "no right")
}

// Callers that are refused all the time neither fill the log nor have the right token refused.
func TestRefusedCallersAreLimitedInTheLog(t *testing.T) {
	for message, token := range map[string]string{"admin token refused": "wrong", "admin call refused": "a.b.c"} {
		synctest.Test(t, func(t *testing.T) {
			var log logtest.Buffer
			g := newGate(testToken, refusing{}, jsonlog.New(&log, slog.LevelInfo))
			call := func(address, token string) error {
				ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))})
				ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+token))
				_, err := g.check(ctx, adminv1.AdminService_RotateCA_FullMethodName)
				return err
			}
			for n := range 100 {
				for _, address := range []string{"10.0.0.1:1", fmt.Sprintf("[2001:db8::%x]:1", n)} { // a host may have a whole /64
					if err := call(address, token); status.Code(err) != codes.Unauthenticated && status.Code(err) != codes.PermissionDenied {
						t.Errorf("%q is not refused for what it is: %v", token, err)
					}
				}
			}
			if n := strings.Count(log.String(), message); n == 0 || n > 40 {
				t.Errorf("%d lines say %q, want at most 20 for each address", n, message)
			}
			if err := call("10.0.0.1:2", testToken); err != nil {
				t.Errorf("the right token: %v", err)
			}
			<-time.After(time.Minute) // the log counts what it has left out
		})
	}
}

func TestAServerOfAnotherAuthorityIsRefused(t *testing.T) {
	f := newFakes(t)
	api := adminv1.NewAdminServiceClient(dial(t, serve(t, f.Options), x509.NewCertPool()))
	if _, err := api.ListMeshes(withToken(t.Context(), testToken), &adminv1.ListMeshesRequest{}); err == nil {
		t.Error("the client must not trust a server without its CA")
	}
}

func TestPlainTextIsRefused(t *testing.T) {
	conn, err := net.Dial("tcp", serve(t, newFakes(t).Options))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // it is a test's client
	if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) || len(answer) > 0 && answer[0] != 0x15 { // only a TLS alert is allowed
		t.Errorf("answer %q, %v: want the connection closed", answer, err)
	}
}

// TestServeAnswersWhileConnectionsAreHeld has a caller that opens more connections than there may be, and asks nothing.
func TestServeAnswersWhileConnectionsAreHeld(t *testing.T) {
	f := newFakes(t)
	address := serve(t, f.Options)
	caller := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	for range maxConnections + 50 {
		c, err := caller.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() //nolint:errcheck,gocritic // all are held until the end
	}
	ctx, cancel := context.WithTimeout(withToken(t.Context(), testToken), handshakeTimeout/2) // those are held for longer
	defer cancel()
	if _, err := adminv1.NewAdminServiceClient(dial(t, address, f.roots)).ListMeshes(ctx, &adminv1.ListMeshesRequest{}); err != nil {
		t.Error(err)
	}
}

func TestALongRequestIsRefused(t *testing.T) {
	api, ctx := start(t, newFakes(t))
	request := &adminv1.ListMeshesRequest{Filter: &adminv1.Filter{Name: strings.Repeat("x", maxRequestBytes)}}
	if _, err := api.ListMeshes(ctx, request); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("ListMeshes() with %d bytes: %v, want %s", maxRequestBytes, err, codes.ResourceExhausted)
	}
}

func TestServeSaysWhyItEnds(t *testing.T) {
	server, err := NewServer(newFakes(t).Options)
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
	if err := server.Serve(t.Context(), lis); err == nil || !strings.Contains(err.Error(), "serve the admin API at 127.0.0.1") {
		t.Errorf("Serve() at a closed listener = %v", err)
	}
}

func TestOptionsThatAreMissing(t *testing.T) {
	without := map[string]func(*Options){
		"TLS":         func(o *Options) { o.TLS = nil },
		"BearerToken": func(o *Options) { o.BearerToken = "" },
		"View":        func(o *Options) { o.View = nil },
		"Resources":   func(o *Options) { o.Resources = nil },
		"Bootstrap":   func(o *Options) { o.Bootstrap = nil },
		"CAExpires":   func(o *Options) { o.CAExpires = nil },
		"Token":       func(o *Options) { o.Token = nil },
		"Rotator":     func(o *Options) { o.Rotator = nil },
	}
	for name, remove := range without {
		t.Run(name, func(t *testing.T) {
			o := newFakes(t).Options
			remove(&o)
			if _, err := NewServer(o); err == nil || !strings.Contains(err.Error(), "option "+name) {
				t.Errorf("NewServer() = %v, want one that names %s", err, name)
			}
		})
	}
}
