package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sonde-mesh/sonde/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a server until the test ends and returns its address.
func serve(t *testing.T, s server) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		_ = s(ctx, l) // the error says that the listener was closed
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return l.Addr().String()
}

func TestHTTP(t *testing.T) {
	at := serve(t, httpServer("one"))
	tests := map[string]struct {
		path  string
		http2 bool
		want  string // the protocol, or part of an error
	}{
		"HTTP/1":        {"/a?b=c", false, "HTTP/1.1"},
		"HTTP/2":        {"/a?b=c", true, "HTTP/2.0"},
		"slow":          {"/slow?for=1ms", false, "HTTP/1.1"},
		"slow, no time": {"/slow", false, "answers 400"},
		"status":        {"/status/503", false, "answers 503"},
		"bad status":    {"/status/99", false, "answers 400"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			caller := harness.NewHTTPCaller("http://"+at+tc.path, true, tc.http2)
			defer caller.Close()
			answer, err := caller.Ask(t.Context())
			if err != nil {
				if !strings.Contains(err.Error(), tc.want) {
					t.Errorf("error = %v, want one with %q", err, tc.want)
				}
				return
			}
			if answer.Instance != "one" || answer.Protocol != tc.want || answer.Requests == 0 {
				t.Errorf("answer is %+v", answer)
			}
		})
	}
}

func TestHealthBesideHTTP(t *testing.T) {
	conn, err := grpc.NewClient(serve(t, httpServer("one")), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	answer, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil || answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("Check() = %v, %v, want SERVING", answer, err)
	}
}

func TestCallers(t *testing.T) {
	tests := map[string]struct {
		server server
		caller func(at string) harness.Caller
		want   string
	}{
		"grpc":   {grpcServer("one"), func(at string) harness.Caller { return harness.NewGRPCCaller(at, true) }, "one"},
		"tcp":    {tcpServer(""), func(at string) harness.Caller { return harness.NewTCPCaller(at, true) }, ""},
		"banner": {tcpServer("220 one\r\n"), func(at string) harness.Caller { return harness.NewBannerCaller(at) }, "one"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			caller := tc.caller(serve(t, tc.server))
			defer caller.Close()
			for range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), harness.StartLimit)
				got, err := caller.Call(ctx)
				cancel()
				if got != tc.want || err != nil {
					t.Errorf("Call() = %q, %v, want %q", got, err, tc.want)
				}
			}
		})
	}
}

func TestOpenConnectionsEndWithTheServer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = tcpServer("hello\n")(ctx, l) // the error says that the listener was closed
		close(ended)
	}()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	reader := bufio.NewReader(conn)
	if _, err := reader.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-ended
	if _, err := reader.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("Read() error = %v, want %v", err, io.EOF)
	}
}
