package admin

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
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
	"github.com/sonde-mesh/sonde/internal/logging"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func TestEveryCallNeedsTheToken(t *testing.T) {
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
		virtual.Run(t, name, func(t *testing.T) {
			f := newFakes(t)
			// Any stream, such as a future one, must not be open to unauthenticated callers.
			n := serve(t, f.Options, func(s *Server) { healthv1.RegisterHealthServer(s.grpc, health.NewServer()) })
			conn := dial(t, n, f.roots)
			api, watcher := adminv1.NewAdminServiceClient(conn), healthv1.NewHealthClient(conn)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for _, value := range tc.header {
				ctx = metadata.AppendToOutgoingContext(ctx, "authorization", value)
			}
			if _, err := api.GetHealth(ctx, &adminv1.GetHealthRequest{}); status.Code(err) != tc.want {
				t.Errorf("unary call: %v, want %s", err, tc.want)
			}
			stream, err := watcher.Watch(ctx, &healthv1.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); status.Code(err) != tc.want {
				t.Errorf("stream: %v, want %s", err, tc.want)
			}
			watch, err := api.Watch(ctx, &adminv1.WatchRequest{Sections: []adminv1.WatchRequest_Section{adminv1.WatchRequest_HEALTH}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := watch.Recv(); status.Code(err) != tc.want {
				t.Errorf("Watch(): %v, want %s", err, tc.want)
			}
			if log := f.log.String(); strings.Contains(log, "admin token refused") != (tc.want != codes.OK) || strings.Contains(log, testToken) {
				t.Errorf("the log must have rejected calls, without tokens: %s", log)
			}
		})
	}
}

// refusing is an Access that refuses all tokens.
type refusing struct{}

func (refusing) Authorize(_ context.Context, _ string, needs []adminv1.Right) (string, map[adminv1.Right]error, error) {
	errs := map[adminv1.Right]error{}
	for _, need := range needs {
		errs[need] = status.Error(codes.PermissionDenied, "no right")
	}
	return "", errs, nil
}

// Callers that are rejected continuously do not fill the log, and do not delay a caller with the right token.
func TestRefusedCallersAreLimitedInTheLog(t *testing.T) {
	for message, token := range map[string]string{"admin token refused": "wrong", "admin call refused": "a.b.c"} {
		synctest.Test(t, func(t *testing.T) {
			var log logtest.Buffer
			g := newGate(testToken, refusing{}, logging.New(&log, slog.LevelInfo, logging.JSON))
			call := func(address, token string) error {
				ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))})
				ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+token))
				_, err := g.check(ctx, adminv1.AdminService_RotateCA_FullMethodName)
				return err
			}
			for n := range 100 {
				for _, address := range []string{"10.0.0.1:1", fmt.Sprintf("[2001:db8::%x]:1", n)} { // a host may have a whole /64
					if err := call(address, token); status.Code(err) != codes.Unauthenticated && status.Code(err) != codes.PermissionDenied {
						t.Errorf("%q is rejected for another reason: %v", token, err)
					}
				}
			}
			if n := strings.Count(log.String(), message); n == 0 || n > 40 {
				t.Errorf("%d lines with %q, want at most 20 for each address", n, message)
			}
			if err := call("10.0.0.1:2", testToken); err != nil {
				t.Errorf("the right token: %v", err)
			}
			time.Sleep(time.Minute) // the log counts the omitted lines
		})
	}
}

func TestAServerOfAnotherAuthorityIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t)
		api := adminv1.NewAdminServiceClient(dial(t, serve(t, f.Options), x509.NewCertPool()))
		if _, err := api.GetHealth(withToken(t.Context(), testToken), &adminv1.GetHealthRequest{}); err == nil {
			t.Error("the client must not trust a server without its CA")
		}
	})
}

func TestPlainTextIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, err := serve(t, newFakes(t).Options).DialFrom(client)(t.Context(), "tcp", serverAt)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck // it is a test's client
		if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		answer, err := io.ReadAll(conn)
		if took := time.Since(begun); err != nil || took > 0 || len(answer) > 0 && answer[0] != 0x15 { // a TLS alert
			t.Errorf("answer %q, %v after %s: want the connection closed at once", answer, err, took)
		}
	})
}

// TestServeAnswersWhileConnectionsAreHeld has a caller that opens more connections than allowed, and sends nothing.
func TestServeAnswersWhileConnectionsAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t)
		n := serve(t, f.Options)
		for range MaxConnections + 50 {
			c, err := n.DialFrom(other)(t.Context(), "tcp", serverAt)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close() //nolint:errcheck,gocritic // all must stay open until the end
		}
		ctx, cancel := context.WithTimeout(withToken(t.Context(), testToken), handshakeTimeout/2) // held ones live longer
		defer cancel()
		if _, err := adminv1.NewAdminServiceClient(dial(t, n, f.roots)).GetHealth(ctx, &adminv1.GetHealthRequest{}); err != nil {
			t.Error(err)
		}
	})
}

func TestALongRequestIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, ctx := start(t, newFakes(t))
		request := &adminv1.ListMeshesRequest{Filter: &adminv1.Filter{Name: strings.Repeat("x", maxRequestBytes)}}
		if _, err := api.ListMeshes(ctx, request); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("ListMeshes() with %d bytes: %v, want %s", maxRequestBytes, err, codes.ResourceExhausted)
		}
	})
}

func TestServeSaysWhyItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, err := NewServer(newFakes(t).Options)
		if err != nil {
			t.Fatal(err)
		}
		lis, err := virtual.NewNetwork().Listen(t.Context(), "tcp", serverAt)
		if err != nil {
			t.Fatal(err)
		}
		if err := lis.Close(); err != nil {
			t.Fatal(err)
		}
		if err := server.Serve(t.Context(), lis); err == nil || !strings.Contains(err.Error(), "serve the admin API at 10.0.0.1:5681") {
			t.Errorf("Serve() with a closed listener = %v", err)
		}
	})
}

// lacking is a listener whose first calls of Accept lack file descriptors.
type lacking struct {
	net.Listener
	left int
}

func (l *lacking) Accept() (net.Conn, error) {
	if l.left > 0 {
		l.left--
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// TestServeWaitsForDescriptors checks that a server without file descriptors retries with back-off, and does not end.
func TestServeWaitsForDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, err := NewServer(newFakes(t).Options)
		if err != nil {
			t.Fatal(err)
		}
		inner, err := virtual.NewNetwork().Listen(t.Context(), "tcp", serverAt)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		l := &lacking{inner, 10}
		go func() { ended <- server.Serve(ctx, l) }()
		time.Sleep(time.Second)
		synctest.Wait()
		if l.left == 0 || l.left == 10 {
			t.Errorf("after a second %d of ten failures remain, want some", l.left)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestOptionsThatAreMissing(t *testing.T) {
	without := map[string]func(*Options){
		"TLS":         func(o *Options) { o.TLS = nil },
		"Lists":       func(o *Options) { o.Lists = nil },
		"Rotations":   func(o *Options) { o.Rotations = nil },
		"Strict":      func(o *Options) { o.Strict = nil },
		"BearerToken": func(o *Options) { o.BearerToken = "" },
		"View":        func(o *Options) { o.View = nil },
		"Resources":   func(o *Options) { o.Resources = nil },
		"Bootstrap":   func(o *Options) { o.Bootstrap = nil },
		"Token":       func(o *Options) { o.Token = nil },
		"Query":       func(o *Options) { o.Query = nil },
		"Health":      func(o *Options) { o.Health = nil },
		"Drain":       func(o *Options) { o.Drain = nil },
	}
	for name, remove := range without {
		t.Run(name, func(t *testing.T) {
			o := newFakes(t).Options
			remove(&o)
			if _, err := NewServer(o); err == nil || !strings.Contains(err.Error(), "option "+name) {
				t.Errorf("NewServer() = %v, want an error that names %s", err, name)
			}
		})
	}
}
