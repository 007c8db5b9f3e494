package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/bench/rig"
)

// ip is the address of all listeners.
const ip = "127.0.0.1"

func at(port int) string { return net.JoinHostPort(ip, strconv.Itoa(port)) }

func listen(ctx context.Context) (net.Listener, error) {
	var c net.ListenConfig
	return c.Listen(ctx, "tcp", ip+":0")
}

// The kinds of probes.
const (
	kindHTTP = "HTTP"
	kindTCP  = "TCP"
	kindGRPC = "gRPC"
)

var kinds = []string{kindHTTP, kindTCP, kindGRPC}

// app has the ports of the application, by the kind of probe.
type app map[string]int

// apps are a role for each kind of probe: a healthy application.
var apps = map[string]rig.Role{
	kindHTTP: func(ctx context.Context, _ []string) error {
		return serve(ctx, func(l net.Listener) error {
			server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "ok") // the caller may have disconnected
			})}
			return server.Serve(l)
		})
	},
	kindGRPC: func(ctx context.Context, _ []string) error {
		return serve(ctx, func(l net.Listener) error {
			server := grpc.NewServer()
			healthpb.RegisterHealthServer(server, health.NewServer())
			return server.Serve(l)
		})
	},
	kindTCP: func(ctx context.Context, _ []string) error {
		return serve(ctx, func(l net.Listener) error {
			for {
				c, err := l.Accept()
				if err != nil {
					return err
				}
				go func() {
					_, _ = io.Copy(io.Discard, c) // until the client closes it
					_ = c.Close()
				}()
			}
		})
	},
}

// serve serves on a free port until the input of the role ends.
func serve(ctx context.Context, on func(net.Listener) error) error {
	l, err := listen(ctx)
	if err != nil {
		return err
	}
	go func() { _ = on(l) }() // the client counts failures
	return rig.Serve(l.Addr(), func([]string) error { return errors.New("this role has no commands") })
}

// startApp starts the application of each kind.
func startApp(b *testing.B) app {
	b.Helper()
	a := app{}
	for kind := range apps {
		_, port, err := net.SplitHostPort(rig.Start(b, kind, nil).Address)
		if err == nil {
			a[kind], err = strconv.Atoi(port)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	return a
}

// entry returns entry n of a probe table.
func (a app) entry(n int, kind string) mesh.Probe {
	p := mesh.Probe{ID: strconv.Itoa(n)}
	switch port := int32(a[kind]); kind {
	case kindHTTP:
		p.HTTPGet = &mesh.HTTPGetProbe{Port: port, Path: "/" + p.ID}
	case kindTCP:
		p.TCPSocket = &mesh.TCPSocketProbe{Port: port}
	case kindGRPC:
		p.GRPC = &mesh.GRPCProbe{Port: port}
	}
	return p
}

// table returns an encoded probe table with this many entries of each kind, one kind after the
// other.
func (a app) table(each int, kinds ...string) (string, error) {
	var table mesh.ProbeTable
	for _, kind := range kinds {
		for range each {
			table = append(table, a.entry(len(table), kind))
		}
	}
	text, err := table.Encode()
	if err != nil {
		return "", fmt.Errorf("encode the probe table: %w", err)
	}
	return text, nil
}
