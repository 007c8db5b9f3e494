package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sonde-mesh/sonde/test/harness"
)

// control changes the running application, and makes calls from its pod:
//
//	PUT /http?status=500                         sets the status of /healthz
//	PUT /grpc?service=NAME&status=NOT_SERVING    sets the status of gRPC health
//	PUT /port?name=tcp&open=false                closes the port of a protocol, or reopens it
//	GET /counts                                  number of requests by path
//	GET /call?url=URL                            makes one HTTP request
//	GET /raw?at=HOST:PORT&send=TEXT&half=true    sends a text on a connection, and returns the response
//	PUT /load?name=NAME&kind=http&target=URL     starts a load; see newCaller for the kinds
//	GET /load?name=NAME                          returns its report so far
//	DELETE /load?name=NAME                       stops it
type control struct {
	*state
	ctx   context.Context //nolint:containedctx // the life of the program: loads outlive the requests that start them
	doors map[string]*door

	mu    sync.Mutex
	loads map[string]*harness.Load
}

func (c *control) serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	for pattern, handle := range map[string]func(*http.Request) (any, error){
		"PUT /http": c.putHTTP, "PUT /grpc": c.putGRPC, "PUT /port": c.putPort,
		"GET /counts": func(*http.Request) (any, error) { return c.countsNow(), nil },
		"GET /call":   call, "GET /raw": raw, "PUT /load": c.putLoad, "GET /load": c.getLoad, "DELETE /load": c.deleteLoad,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			answer, err := handle(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			_ = json.NewEncoder(w).Encode(answer) // an error means that the caller has disconnected
		})
	}
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (c *control) putHTTP(r *http.Request) (any, error) {
	status, err := strconv.Atoi(r.FormValue("status"))
	if err != nil || status < 200 || status > 599 {
		return nil, fmt.Errorf("status %q: must be a number from 200 to 599", r.FormValue("status"))
	}
	c.setStatus(status)
	return nil, nil
}

func (c *control) putGRPC(r *http.Request) (any, error) {
	status, known := healthpb.HealthCheckResponse_ServingStatus_value[r.FormValue("status")]
	if !known {
		return nil, fmt.Errorf("status %q: must be a status of gRPC health", r.FormValue("status"))
	}
	c.health.SetServingStatus(r.FormValue("service"), healthpb.HealthCheckResponse_ServingStatus(status))
	return nil, nil
}

func (c *control) putPort(r *http.Request) (any, error) {
	d, known := c.doors[r.FormValue("name")]
	if !known {
		return nil, fmt.Errorf("name %q: not a served port", r.FormValue("name"))
	}
	open, err := strconv.ParseBool(r.FormValue("open"))
	if err != nil {
		return nil, err
	}
	if open {
		return nil, d.open(c.ctx)
	}
	return nil, d.close()
}

// called is the response of /call.
type called struct {
	Status int         `json:"status,omitempty"`
	Header http.Header `json:"header,omitempty"`
	Body   string      `json:"body,omitempty"`
	Error  string      `json:"error,omitempty"`
}

// call makes one request on a new connection.
func call(r *http.Request) (any, error) {
	request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, r.FormValue("url"), nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return called{Error: err.Error()}, nil
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		return called{Status: answer.StatusCode, Error: err.Error()}, nil
	}
	return called{Status: answer.StatusCode, Header: answer.Header, Body: string(body)}, nil
}

// raw sends a text on a new connection and reads until the peer closes it. With half, it closes its sending side
// after the first response.
func raw(r *http.Request) (any, error) {
	d := net.Dialer{Timeout: 10 * time.Second}
	conn, err := d.DialContext(r.Context(), "tcp", r.FormValue("at"))
	if err != nil {
		return called{Error: err.Error()}, nil
	}
	defer func() { _ = conn.Close() }()
	limited := conn.SetDeadline(time.Now().Add(10 * time.Second))
	if err := errors.Join(limited, writeAll(conn, r.FormValue("send"))); err != nil {
		return called{Error: err.Error()}, nil
	}
	first := make([]byte, 1)
	n, err := conn.Read(first)
	if n == 1 && r.FormValue("half") == "true" {
		err = conn.(*net.TCPConn).CloseWrite()
	}
	var rest []byte
	if err == nil {
		rest, err = io.ReadAll(io.LimitReader(conn, 1<<20))
	}
	answer := called{Body: string(first[:n]) + string(rest)}
	if err != nil && !errors.Is(err, io.EOF) {
		answer.Error = err.Error()
	}
	return answer, nil
}

func writeAll(w io.Writer, text string) error {
	_, err := io.WriteString(w, text)
	return err
}

// newCaller returns a caller: HTTP over a kept connection or new connections, HTTP/2, gRPC, or TCP over a kept
// connection.
func newCaller(kind, target string) (harness.Caller, error) {
	switch kind {
	case "http", "http-new", "http2":
		return harness.NewHTTPCaller(target, kind != "http-new", kind == "http2"), nil
	case "post", "post-new":
		c := harness.NewHTTPCaller(target, kind == "post", false)
		c.Method = http.MethodPost
		return c, nil
	case "grpc":
		return harness.NewGRPCCaller(target, true), nil
	case "tcp":
		return harness.NewTCPCaller(target, true), nil
	}
	return nil, fmt.Errorf("kind %q: must be http, http-new, http2, post, post-new, grpc or tcp", kind)
}

// loadPause is the pause between two calls of a load. Many loads share a small machine with a whole
// cluster.
const loadPause = 40 * time.Millisecond

func (c *control) putLoad(r *http.Request) (any, error) {
	caller, err := newCaller(r.FormValue("kind"), r.FormValue("target"))
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	name := r.FormValue("name")
	if c.loads[name] != nil {
		return nil, fmt.Errorf("name %q: load already exists", name)
	}
	c.loads[name] = harness.StartLoad(c.ctx, loadPause, caller)
	return nil, nil
}

func (c *control) load(r *http.Request) (*harness.Load, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.loads[r.FormValue("name")]; l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("name %q: load not found", r.FormValue("name"))
}

func (c *control) getLoad(r *http.Request) (any, error) {
	l, err := c.load(r)
	if err != nil {
		return nil, err
	}
	return l.Report(), nil
}

func (c *control) deleteLoad(r *http.Request) (any, error) {
	l, err := c.load(r)
	if err != nil {
		return nil, err
	}
	report := l.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.loads, r.FormValue("name"))
	return report, nil
}
