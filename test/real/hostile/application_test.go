package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/sonde-mesh/sonde/test/must"
)

// serveApplication serves the applications of the attacked proxy: HTTP/1 and HTTP/2 on one address, and TCP on
// another.
func serveApplication(t *testing.T, http, tcp string) {
	t.Helper()
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); running.Wait() })
	serveHTTP(ctx, t, &running, http)
	serveTCP(ctx, t, &running, tcp)
}

func serveHTTP(ctx context.Context, t *testing.T, running *sync.WaitGroup, at string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
	must.Do(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) { _ = json.NewEncoder(w).Encode(r.Header) })
	mux.HandleFunc("/ok", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	mux.HandleFunc("/wait", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/endless", func(w http.ResponseWriter, _ *http.Request) {
		for block := make([]byte, 32<<10); ; {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{
		Handler: mux, Protocols: &protocols, BaseContext: func(net.Listener) context.Context { return ctx }, // its end cancels the handlers
		MaxHeaderBytes: 1 << 20, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1 << 20},
	}
	running.Go(func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	running.Go(func() { <-ctx.Done(); _ = s.Close() })
}

// Commands for the application behind the TCP inbound: the first byte of a connection.
const (
	askEcho  = 'e'
	askBytes = 'b' // endless bytes
	askStall = 's' // the application stops reading
)

func serveTCP(ctx context.Context, t *testing.T, running *sync.WaitGroup, at string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", at)
	must.Do(t, err)
	running.Go(func() { <-ctx.Done(); _ = l.Close() })
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				defer stop()
				defer func() { _ = c.Close() }()
				answerTCP(ctx, c)
			})
		}
	})
}

func answerTCP(ctx context.Context, c net.Conn) {
	ask := make([]byte, 1)
	if _, err := io.ReadFull(c, ask); err != nil {
		return
	}
	switch ask[0] {
	case askEcho:
		_, _ = io.Copy(c, c)
	case askBytes:
		for block := make([]byte, 32<<10); ; {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	case askStall:
		<-ctx.Done()
	}
}
