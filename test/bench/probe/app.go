package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// ip is where everything listens.
const ip = "127.0.0.1"

// ports of the application.
type ports struct{ http, tcp, grpc int }

func parsePorts(text string) (p ports, err error) {
	if _, err = fmt.Sscanf(text, "%d,%d,%d", &p.http, &p.tcp, &p.grpc); err != nil {
		return p, fmt.Errorf("parse --app %q: %w", text, err)
	}
	return p, nil
}

func (p ports) String() string { return fmt.Sprintf("%d,%d,%d", p.http, p.tcp, p.grpc) }

func (p ports) of(kind string) int {
	return map[string]int{kindHTTP: p.http, kindTCP: p.tcp, kindGRPC: p.grpc}[kind]
}

// The kinds of probes.
const (
	kindHTTP = "HTTP"
	kindTCP  = "TCP"
	kindGRPC = "gRPC"
)

var kinds = []string{kindHTTP, kindTCP, kindGRPC}

func listen(ctx context.Context) (net.Listener, int, error) {
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", ip+":0")
	if err != nil {
		return nil, 0, err
	}
	return l, l.Addr().(*net.TCPAddr).Port, nil
}

// serveApp runs a healthy application, and prints its ports.
func serveApp(ctx context.Context) error {
	var p ports
	listeners := map[string]net.Listener{}
	for kind, port := range map[string]*int{kindHTTP: &p.http, kindTCP: &p.tcp, kindGRPC: &p.grpc} {
		var err error
		if listeners[kind], *port, err = listen(ctx); err != nil {
			return err
		}
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok") // whoever asked may be gone
	})}
	rpc := grpc.NewServer()
	healthpb.RegisterHealthServer(rpc, health.NewServer())
	errs := make(chan error, len(kinds))
	go func() { errs <- server.Serve(listeners[kindHTTP]) }()
	go func() { errs <- rpc.Serve(listeners[kindGRPC]) }()
	go func() {
		for {
			c, err := listeners[kindTCP].Accept()
			if err != nil {
				errs <- err
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, c) // until the other side closes it
				_ = c.Close()
			}()
		}
	}()
	if _, err := fmt.Fprintln(os.Stdout, p); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, os.Stdin) // until the benchmark ends
	}()
	select {
	case <-ended:
		return nil
	case err := <-errs:
		return err
	}
}
