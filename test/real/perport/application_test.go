package perport

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sonde-mesh/sonde/test/must"
)

// application listens on a port, which it can close and reopen. It counts the received bytes.
type application struct {
	t     testing.TB
	at    string
	serve func(net.Listener)
	bytes atomic.Int64
	close func()
}

// apply starts an application, which serves until its listener is closed. end closes its
// connections.
func apply(t testing.TB, at string, serve func(net.Listener), end func()) *application {
	t.Helper()
	a := &application{t: t, at: at, serve: serve}
	a.open()
	t.Cleanup(func() { a.close(); end() })
	return a
}

func (a *application) open() {
	a.t.Helper()
	l, err := (&net.ListenConfig{}).Listen(a.t.Context(), "tcp", a.at)
	must.Do(a.t, err)
	var running sync.WaitGroup
	running.Go(func() { a.serve(counted{l, &a.bytes}) })
	a.close = sync.OnceFunc(func() {
		_ = l.Close()
		running.Wait()
	})
}

// counted counts the bytes read from its connections.
type counted struct {
	net.Listener
	bytes *atomic.Int64
}

func (l counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return countedConn{c, l.bytes}, nil
}

type countedConn struct {
	net.Conn
	bytes *atomic.Int64
}

func (c countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// newSilent starts an application that reads everything and sends nothing.
func newSilent(t testing.TB, at string) *application {
	t.Helper()
	var running sync.WaitGroup
	return apply(t, at, func(l net.Listener) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer func() { _ = c.Close() }()
				_, _ = io.Copy(io.Discard, c) // until the connection ends
			})
		}
	}, running.Wait)
}

// newGRPC starts an application that serves gRPC health checking, and another method.
func newGRPC(t testing.TB, at string, status *health.Server) *application {
	t.Helper()
	var mu sync.Mutex
	var servers []*grpc.Server
	return apply(t, at, func(l net.Listener) {
		server := grpc.NewServer()
		healthpb.RegisterHealthServer(server, status)
		server.RegisterService(&grpc.ServiceDesc{ServiceName: "shop.Orders", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
			MethodName: "Delete",
			Handler: func(any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
				t.Error("shop.Orders/Delete gets to the application")
				return &healthpb.HealthCheckResponse{}, nil
			},
		}}}, struct{}{})
		mu.Lock()
		servers = append(servers, server)
		mu.Unlock()
		_ = server.Serve(l) // until l is closed
	}, func() {
		for _, server := range servers {
			server.Stop()
		}
	})
}

// seen is a request that an application received.
type seen struct {
	Method, Host, Target, UserAgent string
	// Headers are the names of other headers, except for those that the kubelet itself would send.
	Headers []string
}

// web is an HTTP application whose response depends on the query.
type web struct {
	requests chan seen
	// left receives a value when a client disconnects before its response.
	left chan struct{}
}

func newWeb(t testing.TB, addresses ...string) *web {
	t.Helper()
	w := &web{requests: make(chan seen, 100), left: make(chan struct{}, 100)}
	for _, at := range addresses {
		server := &http.Server{Handler: w}
		apply(t, at, func(l net.Listener) { _ = server.Serve(l) }, func() { _ = server.Close() })
	}
	return w
}

func (a *web) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := seen{Method: r.Method, Host: r.Host, Target: r.RequestURI, UserAgent: r.UserAgent()}
	for name := range r.Header {
		switch name {
		case "User-Agent", "Accept", "Connection", "Referer":
		default:
			s.Headers = append(s.Headers, name)
		}
	}
	a.requests <- s
	query, _ := url.ParseQuery(r.URL.RawQuery)
	if wait, err := time.ParseDuration(query.Get("after")); err == nil {
		select {
		case <-time.After(wait):
		case <-r.Context().Done():
			a.left <- struct{}{}
		}
	}
	if location := query.Get("to"); location != "" {
		w.Header().Set("Location", location)
		w.WriteHeader(http.StatusFound)
		return
	}
	if length := query.Get("length"); length != "" {
		w.Header().Set("Content-Length", length)
	}
	if status, err := strconv.Atoi(query.Get("status")); err == nil {
		w.WriteHeader(status)
	}
	_, _ = io.WriteString(w, "SECRET") // Content-Length may be larger
}
