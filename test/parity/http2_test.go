package parity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// both is an application that serves HTTP/1, HTTP/2 without TLS, and gRPC on one port, whose protocol is http.
var both = &application{name: "both", protocol: "http", serve: serveHTTP(nil)}

// h2c is the same on a port whose protocol is http2.
var h2c = &application{name: "h2c", protocol: "http2", serve: serveHTTP(nil)}

// https terminates TLS itself, on a port whose protocol is tcp.
var https = &application{name: "https", protocol: "tcp", serve: serveHTTP(ownTLS)}

// manyStreams is more than any call uses.
const manyStreams = 1 << 20

func serveHTTP(tlsOf func() *tls.Config) func(net.Listener, func(string)) {
	return func(l net.Listener, see func(string)) {
		var protocols http.Protocols
		protocols.SetHTTP1(true)
		protocols.SetHTTP2(true)
		protocols.SetUnencryptedHTTP2(true)
		rpc := grpcServer()
		s := &http.Server{Protocols: &protocols, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: manyStreams}, Handler: handler(rpc, see)}
		if tlsOf != nil {
			s.TLSConfig = tlsOf().Clone()
			_ = s.ServeTLS(l, "", "")
		} else {
			_ = s.Serve(l)
		}
		_ = s.Close()
		rpc.Stop()
	}
}

func handler(rpc *grpc.Server, see func(string)) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Trailer")
		w.Header().Set("X-Protocol", r.Proto)
		w.Header().Set("X-Host", r.Host)
		_ = http.NewResponseController(w).EnableFullDuplex() // otherwise Go's server drops unread data when the answer begins
		n, err := io.Copy(w, r.Body)
		for name, values := range r.Trailer {
			w.Header().Set("X-Trailer", name+"="+values[0])
		}
		see(fmt.Sprintf("%s %s, %d bytes, %v", r.Method, r.Proto, n, err))
	})
	mux.HandleFunc("/early", func(w http.ResponseWriter, _ *http.Request) { // answers before the body arrives
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	})
	mux.HandleFunc("/abort", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "some")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	mux.HandleFunc("/hold", func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		see("canceled")
	})
	// Each piece is answered before the next one arrives.
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		_ = c.EnableFullDuplex()
		w.WriteHeader(http.StatusOK)
		_ = c.Flush()
		piece := make([]byte, 64)
		for {
			n, err := r.Body.Read(piece)
			_, _ = w.Write(piece[:n])
			_ = c.Flush()
			if err != nil {
				return
			}
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			rpc.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// ownTLS is an application's own TLS configuration. Its clients use trustOwn.
var (
	certified = sync.OnceValue(func() *httptest.Server {
		s := httptest.NewTLSServer(nil)
		s.Close()
		return s
	})
	ownTLS   = func() *tls.Config { return &tls.Config{Certificates: certified().TLS.Certificates} }
	trustOwn = func() *x509.CertPool {
		pool := x509.NewCertPool()
		pool.AddCert(certified().Certificate())
		return pool
	}
)

// question is a request of Go's own client.
type question struct {
	protocol, method, path string
	body                   io.Reader
	headers                http.Header
	trailer                http.Header
	// say has the headers of the answer that are reported.
	say []string
}

// transport returns Go's client for one version of HTTP: 1, 2, or the version negotiated over TLS. The caller closes
// its idle connections.
func transport(protocol string) *http.Transport {
	var p http.Protocols
	t := &http.Transport{Protocols: &p}
	switch protocol {
	case "1":
		p.SetHTTP1(true)
	case "2":
		p.SetUnencryptedHTTP2(true)
	case "https":
		p.SetHTTP1(true)
		p.SetHTTP2(true)
		t.TLSClientConfig = &tls.Config{RootCAs: trustOwn(), ServerName: "example.com"}
	}
	return t
}

// sends returns a client that sends a request once.
func sends(q question) func(context.Context, string) string {
	return func(ctx context.Context, at string) string {
		t := transport(q.protocol)
		defer t.CloseIdleConnections()
		scheme := "http"
		if q.protocol == "https" {
			scheme = "https"
		}
		r, err := http.NewRequestWithContext(ctx, q.method, scheme+"://"+at+q.path, q.body)
		if err != nil {
			return err.Error()
		}
		r.Host = "example.com"
		maps.Copy(r.Header, q.headers)
		r.Trailer = q.trailer
		if body, ok := q.body.(io.Closer); ok { // Go's client waits for the body even after an error
			defer context.AfterFunc(ctx, func() { _ = body.Close() })()
		}
		answer, err := t.RoundTrip(r)
		if err != nil {
			return inWords(err)
		}
		if body, ok := q.body.(io.Closer); ok { // the body may be endless
			_ = body.Close()
		}
		defer func() { _ = answer.Body.Close() }()
		body, err := io.ReadAll(answer.Body)
		parts := []string{fmt.Sprintf("%s %d %q", answer.Proto, answer.StatusCode, shortened(string(body)))}
		for _, name := range q.say {
			parts = append(parts, name+": "+answer.Header.Get(name))
		}
		for _, name := range slices.Sorted(maps.Keys(answer.Trailer)) {
			parts = append(parts, "trailer "+name+": "+answer.Trailer.Get(name))
		}
		if err != nil {
			parts = append(parts, inWords(err))
		}
		return strings.Join(parts, ", ")
	}
}

// pieces sends pieces, each after the answer to the previous one.
func pieces(protocol string) func(context.Context, string) string {
	return func(ctx context.Context, at string) string {
		t := transport(protocol)
		defer t.CloseIdleConnections()
		body, out := io.Pipe()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at+"/stream", body)
		if err != nil {
			return err.Error()
		}
		answer, err := t.RoundTrip(r)
		if err != nil {
			return inWords(err)
		}
		defer func() { _ = answer.Body.Close() }()
		var got []string
		for _, piece := range []string{"one", "two", "three"} {
			_, _ = io.WriteString(out, piece)
			back := make([]byte, len(piece))
			if _, err := io.ReadFull(answer.Body, back); err != nil {
				return strings.Join(got, " ") + " " + inWords(err)
			}
			got = append(got, string(back))
		}
		_ = out.Close()
		_, err = io.ReadAll(answer.Body)
		return fmt.Sprintf("%s %v", strings.Join(got, " "), err)
	}
}

// leaves cancels a request whose answer has no end.
func leaves(protocol string) func(context.Context, string) string {
	return func(ctx context.Context, at string) string {
		t := transport(protocol)
		defer t.CloseIdleConnections()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/hold", nil)
		if err != nil {
			return err.Error()
		}
		answer, err := t.RoundTrip(r)
		if err != nil {
			return inWords(err)
		}
		defer func() { _ = answer.Body.Close() }()
		return strconv.Itoa(answer.StatusCode)
	}
}

func http2Calls() []*call {
	var all []*call
	for _, x := range []struct {
		app      *application
		protocol string
	}{{both, "1"}, {both, "2"}, {h2c, "2"}} {
		group := map[string]string{"1": "HTTP/1.1 by Go's client", "2": "HTTP/2 without TLS by Go's client"}[x.protocol]
		proto := map[string]string{"1": "HTTP/1.1", "2": "HTTP/2.0"}[x.protocol]
		all = append(all,
			&call{group: group, name: "GET", app: x.app, want: fmt.Sprintf(`%s 200 "", X-Protocol: %s, X-Host: example.com, trailer X-Trailer: `, proto, proto),
				client: sends(question{protocol: x.protocol, method: http.MethodGet, path: "/echo", say: []string{"X-Protocol", "X-Host"}})},
			&call{group: group, name: "POST of 10 bytes", app: x.app, sees: 1, want: fmt.Sprintf(`%s 200 "0123456789", trailer X-Trailer: ; the application: POST %s, 10 bytes, <nil>`, proto, proto),
				client: func(ctx context.Context, at string) string {
					return sends(question{protocol: x.protocol, method: http.MethodPost, path: "/echo", body: strings.NewReader("0123456789")})(ctx, at)
				}},
			&call{group: group, name: "POST of 4 MiB", app: x.app, sees: 1,
				want: fmt.Sprintf(`%s 200 "4194304 bytes", trailer X-Trailer: ; the application: POST %s, 4194304 bytes, <nil>`, proto, proto),
				client: func(ctx context.Context, at string) string {
					return sends(question{protocol: x.protocol, method: http.MethodPost, path: "/echo", body: io.LimitReader(zeros{}, 4<<20)})(ctx, at)
				}},
			&call{group: group, name: "trailers of a request and an answer", app: x.app,
				want: proto + ` 200 "body", trailer X-Trailer: X-Sum=1`,
				client: func(ctx context.Context, at string) string {
					return sends(question{protocol: x.protocol, method: http.MethodPost, path: "/echo", body: io.MultiReader(strings.NewReader("body")),
						trailer: http.Header{"X-Sum": {"1"}}})(ctx, at)
				}},
			&call{group: group, name: "a response before the request body has ended", app: x.app, want: proto + ` 413 ""`, client: func(ctx context.Context, at string) string {
				ends, _ := ctx.Deadline()
				ctx, cancel := context.WithTimeout(ctx, time.Until(ends)/3) // Go's client waits for the body if the connection ends
				defer cancel()
				body, out := io.Pipe()
				defer func() { _ = out.Close() }()
				return sends(question{protocol: x.protocol, method: http.MethodPost, path: "/early", body: body})(ctx, at)
			}},
			&call{group: group, name: "a truncated response", app: x.app, want: map[string]string{
				"1": `HTTP/1.1 200 "some", closed`, "2": `HTTP/2.0 200 "some", stream error: stream ID 1; INTERNAL_ERROR; received from peer`}[x.protocol],
				client: sends(question{protocol: x.protocol, method: http.MethodGet, path: "/abort"})},
			&call{group: group, name: "pieces in turn", app: x.app, client: pieces(x.protocol), want: "one two three <nil>"},
			&call{group: group, name: "the client cancels", app: x.app, sees: 1, client: leaves(x.protocol), want: "200; the application: canceled"},
		)
	}
	const group = "The application's own TLS"
	all = append(all,
		&call{group: group, name: "HTTP over TLS", app: https, want: `HTTP/2.0 200 "", X-Protocol: HTTP/2.0, trailer X-Trailer: `,
			client: sends(question{protocol: "https", method: http.MethodGet, path: "/echo", say: []string{"X-Protocol"}})},
		&call{group: group, name: "4 MiB over TLS", app: https, want: `HTTP/2.0 200 "4194304 bytes", trailer X-Trailer: `, client: func(ctx context.Context, at string) string {
			return sends(question{protocol: "https", method: http.MethodPost, path: "/echo", body: io.LimitReader(zeros{}, 4<<20)})(ctx, at)
		}},
	)
	return all
}
