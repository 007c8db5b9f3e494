package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// Roles of the subjects that are not sonde-dp.
const (
	roleRaw     = "raw"     // copies bytes between connections
	roleNaive   = "naive"   // httputil.ReverseProxy with the kubelet's transport, which keeps no connections
	roleHandler = "handler" // dpagent/probe without a guard, in a process that reports its allocations
)

// serveSubject serves on a port of its own and prints the port. Then it prints its allocations for each line that it reads.
func serveSubject(ctx context.Context, role string, app ports) error {
	l, port, err := listen(ctx)
	if err != nil {
		return err
	}
	serve := map[string]func(context.Context, net.Listener, ports) error{
		roleRaw: serveRaw, roleNaive: serveNaive, roleHandler: serveHandler,
	}[role]
	if serve == nil {
		return fmt.Errorf("unknown role %q", role)
	}
	errs := make(chan error, 2)
	go func() { errs <- tellAllocations(port) }()
	go func() { errs <- serve(ctx, l, app) }()
	return <-errs
}

func tellAllocations(port int) error {
	_, err := fmt.Fprintln(os.Stdout, port)
	for in := bufio.NewScanner(os.Stdin); err == nil && in.Scan(); {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		_, err = fmt.Fprintln(os.Stdout, m.Mallocs, m.TotalAlloc)
	}
	return err
}

// serveHandler reads the probe table from the environment, as the agent does.
func serveHandler(ctx context.Context, l net.Listener, _ ports) error {
	o, err := probe.Environment{
		Table: os.Getenv(mesh.EnvProbeTable), InstanceIP: ip, Port: l.Addr().(*net.TCPAddr).Port,
	}.Options(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	o.PodIP = netip.MustParseAddr(ip)
	h, err := probe.New(o)
	if err != nil {
		return err
	}
	return h.Serve(ctx, l)
}

// serveNaive proxies HTTP, connects for TCP, and makes a new client for each gRPC probe.
func serveNaive(_ context.Context, l net.Listener, app ports) error {
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	target := &url.URL{Scheme: "http", Host: at(app.http)}
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.URL.Path = strings.TrimPrefix(r.In.URL.Path, "/"+strconv.Itoa(app.http))
	}}
	mux := http.NewServeMux()
	mux.Handle("/", proxy)
	mux.HandleFunc("/tcp/", func(w http.ResponseWriter, r *http.Request) {
		var d net.Dialer
		c, err := d.DialContext(r.Context(), "tcp", at(app.tcp))
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_ = c.Close() // that it was open is enough
	})
	mux.HandleFunc("/grpc/", func(w http.ResponseWriter, r *http.Request) {
		if err := checkGRPC(r.Context(), at(app.grpc)); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	return server.Serve(l)
}

// checkGRPC makes a new client for one check.
func checkGRPC(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the call has ended
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return err
	}
	if s := answer.GetStatus(); s != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("status %s", s)
	}
	return nil
}

func at(port int) string { return net.JoinHostPort(ip, strconv.Itoa(port)) }

// raw does the least work possible: it answers with bytes that were made in advance.
type raw struct {
	app           ports
	httpRequest   []byte
	grpcRequest   []byte
	success, fail []byte
}

func serveRaw(_ context.Context, l net.Listener, app ports) error {
	const head = "HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 8\r\nConnection: close\r\n\r\n"
	r := raw{
		app:         app,
		httpRequest: fmt.Appendf(nil, "GET /0 HTTP/1.1\r\nHost: %s\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\nConnection: close\r\n\r\n", at(app.http)),
		success:     fmt.Appendf(nil, head+"success\n", "200 OK"), fail: fmt.Appendf(nil, head+"failure\n", "503 Service Unavailable"),
	}
	var err error
	if r.grpcRequest, err = grpcRequest(at(app.grpc)); err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			_ = r.serve(c) // the client counts what fails
			_ = c.Close()
		}()
	}
}

func (r *raw) serve(c net.Conn) error {
	buffer := make([]byte, 4<<10)
	n := 0
	for !bytes.HasSuffix(buffer[:n], []byte("\r\n\r\n")) {
		more, err := c.Read(buffer[n:])
		if err != nil {
			return err
		}
		n += more
	}
	answer := r.success
	if err := r.ask(buffer, string(buffer[:min(n, len("GET /grpc"))])); err != nil {
		answer = r.fail
	}
	_, err := c.Write(answer)
	return err
}

func (r *raw) ask(buffer []byte, line string) error {
	d := net.Dialer{KeepAlive: -1}
	kind := kindHTTP
	switch {
	case strings.HasPrefix(line, "GET /tcp"):
		kind = kindTCP
	case strings.HasPrefix(line, "GET /grpc"):
		kind = kindGRPC
	}
	c, err := d.Dial("tcp", at(r.app.of(kind)))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // everything has been read
	switch kind {
	case kindTCP:
		return c.(*net.TCPConn).SetLinger(0)
	case kindHTTP:
		if _, err := c.Write(r.httpRequest); err != nil {
			return err
		}
		return readStatus(c, buffer)
	}
	if _, err := c.Write(r.grpcRequest); err != nil {
		return err
	}
	return readServing(c)
}

var errUnhealthy = errors.New("the application is not healthy")

// readStatus reads an answer to its end. Any status but 200 is an error.
func readStatus(c net.Conn, buffer []byte) error {
	n := 0
	for n < len(buffer) {
		more, err := c.Read(buffer[n:])
		n += more
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if !bytes.HasPrefix(buffer[:n], []byte("HTTP/1.1 200")) || bytes.Contains(buffer[:n], []byte("Content-Length: 100\r\n")) {
		return errUnhealthy
	}
	return nil
}

// readServing reads frames up to the answer of a health check.
func readServing(c net.Conn) error {
	framer := http2.NewFramer(io.Discard, c)
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			return err
		}
		if data, ok := f.(*http2.DataFrame); ok {
			if !bytes.Equal(data.Data(), []byte{0, 0, 0, 0, 2, 8, byte(healthpb.HealthCheckResponse_SERVING)}) {
				return errUnhealthy
			}
			return nil
		}
	}
}

// grpcRequest is a health check as bytes.
func grpcRequest(authority string) ([]byte, error) {
	var request, fields bytes.Buffer
	encoder := hpack.NewEncoder(&fields)
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", "/grpc.health.v1.Health/Check"}, {":authority", authority},
		{"content-type", "application/grpc"}, {"user-agent", "kube-probe/1.36"}, {"te", "trailers"},
	} {
		if err := encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			return nil, err
		}
	}
	request.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&request, nil)
	err := errors.Join(
		framer.WriteSettings(),
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields.Bytes(), EndHeaders: true}),
		framer.WriteData(1, true, make([]byte, 5)),
	)
	return request.Bytes(), err
}
