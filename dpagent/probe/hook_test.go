package probe_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

const hookID = "6fd0a1f1a7b34f0e9f3c2b1d0e4a5b6c"

func hook(port int32, path string, headers ...mesh.HTTPHeader) mesh.Probe {
	p := get(port, path, headers...)
	p.ID, p.Type = hookID, mesh.ProbePostStart
	return p
}

// call calls a hook as the kubelet does: it keeps connections, and only checks whether the call succeeded.
func (p *pod) call(address string, of mesh.Probe) (*http.Response, error) {
	p.t.Helper()
	transport := &http.Transport{DialContext: p.dial}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+address+of.VirtualPath(), nil)
	if err != nil {
		p.t.Fatal(err)
	}
	r.Header.Set("User-Agent", "kube-lifecycle/1.36")
	r.Header.Set("Accept", "*/*")
	r.Header.Set(mesh.ProbeHeader, of.ID)
	response, err := transport.RoundTrip(r)
	if err == nil {
		_ = response.Body.Close()
	}
	return response, err
}

func TestHooks(t *testing.T) {
	tests := map[string]struct {
		answer string
		ok     bool
		calls  int
	}{
		"200":                 {ok, true, 1},
		"404":                 {"HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n", true, 1},
		"503":                 {"HTTP/1.1 503 x\r\n\r\n", true, 1},
		"302 elsewhere":       {"HTTP/1.1 302 x\r\nLocation: http://127.0.0.2/\r\nContent-Length: 0\r\n\r\n", true, 1},
		"a loop":              {"HTTP/1.1 302 x\r\nLocation: /\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", false, 10},
		"a cut body":          {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx", true, 1},
		"a lie about gzip":    {"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok", true, 1},
		"no answer":           {"", false, 1},
		"garbage":             {"SSH-2.0\r\n", false, 1},
		"a long body, unread": {"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nx", true, 1},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			app := pod.answer(tc.answer)
			p := hook(app.port, "/hook?a=b c", mesh.HTTPHeader{Name: "X", Value: "y"})
			response, err := pod.call(pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), p)
			switch {
			case tc.ok && (err != nil || response.StatusCode != http.StatusOK || !response.Close):
				t.Errorf("hook = %+v, %v, want 200 and the end of the connection", response, err)
			case !tc.ok && !errors.Is(err, io.EOF):
				t.Errorf("hook = %+v, %v, want a connection that ends without an answer", response, err)
			}
			heads, _ := app.requests()
			if len(heads) != tc.calls {
				t.Fatalf("the application was called %d times, want %d", len(heads), tc.calls)
			}
			want := fmt.Sprintf("GET /hook?a=b c HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: kube-lifecycle/1.36\r\nAccept: */*\r\nX: y\r\nAccept-Encoding: gzip\r\n\r\n", app.port)
			if diff := cmp.Diff(want, heads[0]); diff != "" {
				t.Errorf("request (-want +got):\n%s", diff)
			}
		})
	}
}

// A hook to a closed port fails at its first call, as without an agent.
func TestHookRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		p := hook(pod.closedPort(), "/")
		if response, err := pod.call(pod.serve(probe.Options{Table: mesh.ProbeTable{p}}), p); !errors.Is(err, io.EOF) {
			t.Errorf("hook = %+v, %v, want a connection that ends without an answer", response, err)
		}
	})
}

// The kubelet's own client has no timeout, and the probes' timeout and rate limit do not apply to hooks.
func TestHookHasNoTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		app := pod.apply(localhost.String(), func(c net.Conn) {
			<-time.After(time.Hour)
			_, _ = c.Write([]byte(ok))
		})
		p := hook(app.port, "/")
		address := pod.serve(probe.Options{Table: mesh.ProbeTable{p}})
		const callers = 10
		errs := make(chan error, callers)
		for range callers {
			go func() {
				_, err := pod.call(address, p)
				errs <- err
			}()
		}
		for range callers {
			if err := <-errs; err != nil {
				t.Errorf("hook error = %v", err)
			}
		}
		if heads, _ := app.requests(); len(heads) != callers {
			t.Errorf("%d calls became %d, want all, since each has effects", callers, len(heads))
		}
	})
}

// A hook that the kubelet has given up also ends for the application.
func TestHookCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		left := make(chan struct{})
		app := pod.apply(localhost.String(), func(c net.Conn) {
			_, _ = io.Copy(io.Discard, c)
			close(left)
		})
		p := hook(app.port, "/")
		address := pod.serve(probe.Options{Table: mesh.ProbeTable{p}})
		c := pod.connect(address)
		_, _ = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: x\r\nSonde-Probe: %s\r\n\r\n", p.VirtualPath(), p.ID)
		if heads, _ := app.requests(); len(heads) != 1 {
			t.Errorf("the application was called %d times, want once", len(heads))
		}
		_ = c.Close()
		<-left
	})
}

// The agent does not end while a hook is running, and answers other requests until then.
func TestEndWaitsForHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		release := make(chan struct{})
		endHook := sync.OnceFunc(func() { close(release) })
		defer endHook()
		slow := pod.apply(localhost.String(), func(c net.Conn) {
			<-release
			_, _ = c.Write([]byte(ok))
		})
		h, p := hook(slow.port, "/"), get(pod.answer(ok).port, "/")
		ctx, end := context.WithCancel(t.Context())
		defer end()
		address, served := pod.serveUntil(ctx, probe.Options{Table: mesh.ProbeTable{h, p}})
		called := make(chan error, 1)
		go func() {
			_, err := pod.call(address, h)
			called <- err
		}()
		synctest.Wait()
		end()
		for range 20 { // more than a second, because of the rate limit
			if verdict, text := pod.probe(address, p.VirtualPath(), p.ID); verdict != "success" {
				t.Fatalf("a probe during the hook: %s %s", verdict, text)
			}
		}
		endHook()
		if err := <-called; err != nil {
			t.Errorf("hook error = %v", err)
		}
		<-served
	})
}

func TestHookFallsBackToHTTP(t *testing.T) {
	tests := map[string]struct {
		tls   bool
		calls int
	}{
		"HTTP":  {false, 1},
		"HTTPS": {true, 1},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			seen := make(chan *http.Request, 10)
			var config *tls.Config
			if tc.tls {
				config = &tls.Config{Certificates: []tls.Certificate{expired(t)}, NextProtos: []string{"h2", "http/1.1"}}
			}
			port := pod.web(func(_ http.ResponseWriter, r *http.Request) { seen <- r }, config)
			p := hook(port, "/", mesh.HTTPHeader{Name: "Authorization", Value: "secret"})
			p.HTTPGet.Scheme = mesh.SchemeHTTPS
			var log bytes.Buffer // read after the call, when the agent logs nothing more
			if _, err := pod.call(pod.serve(probe.Options{Table: mesh.ProbeTable{p}, Logger: slog.New(slog.NewTextHandler(&log, nil))}), p); err != nil {
				t.Errorf("hook error = %v", err)
			}
			if got := strings.Contains(log.String(), "hook fell back to HTTP"); got == tc.tls {
				t.Errorf("the log has the fallback to HTTP: %t: %s", got, log.String())
			}
			if len(seen) != tc.calls {
				t.Fatalf("the application was called %d times, want %d", len(seen), tc.calls)
			}
			r := <-seen
			if got := r.Header.Get("Authorization") != ""; got != tc.tls {
				t.Errorf("Authorization sent = %t, want %t: HTTP must not carry it", got, tc.tls)
			}
			if r.Proto != "HTTP/1.1" {
				t.Errorf("protocol = %s: the kubelet's hooks support only HTTP/1.1", r.Proto)
			}
		})
	}
}

// A caller without the ID of a hook cannot call it.
func TestHooksNeedTheirID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		app := pod.answer(ok)
		p := hook(app.port, "/")
		nameless := hook(app.port, "/2")
		nameless.ID = ""
		address := pod.serve(probe.Options{Table: mesh.ProbeTable{p, nameless}})
		for _, id := range []string{"", hookID[:31], hookID + "0", strings.ToUpper(hookID)} {
			for _, path := range []string{p.VirtualPath(), nameless.VirtualPath()} {
				if verdict, text := pod.probe(address, path, id); !strings.HasPrefix(text, "404") {
					t.Errorf("hook %s with id %q = %s %q, want 404", path, id, verdict, text)
				}
			}
		}
		if _, connections := app.requests(); connections > 0 {
			t.Errorf("the application has seen %d connections", connections)
		}
	})
}
