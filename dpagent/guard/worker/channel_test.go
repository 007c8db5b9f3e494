package worker

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// guardSide is the guard's end of a channel. A pipe preserves message boundaries like the socket.
type guardSide struct {
	t *testing.T
	net.Conn
}

// newListener returns a listener of a port, and the guard's end of the channel.
func newListener(t *testing.T, grpc bool) (*listener, guardSide) {
	t.Helper()
	guard, worker := net.Pipe()
	ch := newChannel(worker)
	l := ch.add(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 2), Port: 9000}, grpc)
	ch.start()
	t.Cleanup(func() { _, _ = l.Close(), guard.Close() })
	return l, guardSide{t, guard}
}

// serve serves HTTP until the test ends.
func serve(t *testing.T, l net.Listener, h http.HandlerFunc) {
	t.Helper()
	server, served := &http.Server{Handler: h}, make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // returns an error when closed
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
}

func (g guardSide) send(h wire.Header, payload string) {
	g.t.Helper()
	if _, err := g.Write(append(h.Append(nil), payload...)); err != nil {
		g.t.Fatal(err)
	}
}

// ask sends a request of a client at 10.0.0.9:1000.
func (g guardSide) ask(id uint32, flags byte, request string) {
	g.t.Helper()
	g.send(wire.Header{Kind: wire.Request, Flags: flags, ID: id}, "\x04\x0a\x00\x00\x09\x03\xe8"+request)
}

const get = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

// receive returns the next message.
func (g guardSide) receive() (wire.Header, string) {
	g.t.Helper()
	buffer := make([]byte, wire.MaxMessage)
	n, err := g.Read(buffer)
	h, payload, ok := wire.Parse(buffer[:n])
	if err != nil || !ok {
		g.t.Fatalf("receive: %d bytes, %v", n, err)
	}
	return h, string(payload)
}

// answer returns the answer to a request, and its number of messages.
func (g guardSide) answer(id uint32) (text string, messages int) {
	g.t.Helper()
	for {
		h, payload := g.receive()
		text, messages = text+payload, messages+1
		switch {
		case h.ID != id || h.Kind != wire.Answer && h.Kind != wire.End:
			g.t.Fatalf("message %+v, want an answer to %d", h, id)
		case h.Kind == wire.End:
			return text, messages
		}
	}
}

func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, guard := newListener(t, false)
		serve(t, l, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/long" {
				_, _ = io.WriteString(w, strings.Repeat("x", 3*wire.MaxMessage))
			}
			_, _ = fmt.Fprint(w, r.Context().Value(http.LocalAddrContextKey), " ", r.RemoteAddr, " ", r.URL.Path)
		})
		guard.ask(1, wire.More, get[:10])
		guard.send(wire.Header{Kind: wire.Request, ID: 1}, get[10:])
		if text, messages := guard.answer(1); messages != 1 || !strings.HasSuffix(text, "10.0.0.2:9000 10.0.0.9:1000 /") {
			t.Errorf("a request in two parts: %q in %d messages, want one", text, messages)
		}
		guard.ask(2, 0, strings.Replace(get, "/", "/long", 1))
		if text, messages := guard.answer(2); messages < 4 || strings.Count(text, "x") < 3*wire.MaxMessage {
			t.Errorf("a long answer has %d bytes in %d messages", len(text), messages)
		}
	})
}

// TestHookIsAnnounced checks that the worker sends Begun before it calls a hook, so that the guard never gives the hook
// to another worker.
func TestHookIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, guard := newListener(t, false)
		called := false
		serve(t, l, func(http.ResponseWriter, *http.Request) { called = true })
		guard.ask(1, wire.Hook, get)
		synctest.Wait()
		if called {
			t.Error("the hook was called before Begun was sent")
		}
		if h, _ := guard.receive(); h.Kind != wire.Begun || h.ID != 1 {
			t.Errorf("message %+v, want Begun", h)
		}
		if guard.answer(1); !called {
			t.Error("the hook was not called")
		}
	})
}

func TestClientGone(t *testing.T) {
	tests := map[string]func(guardSide){
		"the client": func(g guardSide) { g.send(wire.Header{Kind: wire.Gone, ID: 1}, "") },
		"the guard":  func(g guardSide) { _ = g.Close() },
	}
	for name, goes := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			l, guard := newListener(t, false)
			gone := make(chan error, 1)
			serve(t, l, func(w http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				time.Sleep(time.Minute) // the answer is late
				_, _ = io.WriteString(w, "late")
				gone <- http.NewResponseController(w).Flush()
			})
			guard.ask(1, 0, get)
			synctest.Wait()
			goes(guard)
			if err := <-gone; err == nil {
				t.Error("an answer was written after the client had disconnected")
			}
		})
	}
}

// TestGuardGone ends the channel at the guard's side.
func TestGuardGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, guard := newListener(t, false)
		_ = guard.Close()
		if c, err := l.Accept(); err == nil || !strings.Contains(err.Error(), "the guard has ended") {
			t.Errorf("Accept() = %v, %v", c, err)
		}
	})
}

// TestHalfARequest checks that an incomplete request is dropped when its client disconnects.
func TestHalfARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, guard := newListener(t, false)
		guard.ask(1, wire.More, get[:10])
		guard.send(wire.Header{Kind: wire.Gone, ID: 1}, "")
		guard.ask(1, 0, get)
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(io.LimitReader(c, int64(len(get)))); string(text) != get {
			t.Errorf("request %q, %v", text, err)
		}
		go func() { _ = c.Close() }()
		guard.answer(1)
	})
}

func TestReadDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, guard := newListener(t, false)
		guard.ask(1, 0, "GET")
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Read(make([]byte, 3))
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		began := time.Now()
		time.AfterFunc(time.Second, func() { _ = c.SetReadDeadline(began.Add(2 * time.Second)) })
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 2*time.Second {
			t.Errorf("Read() = %v after %s", err, time.Since(began))
		}
		go c.(*conn).Unlimited()
		if h, _ := guard.receive(); h.Kind != wire.Unlimited || h.ID != 1 {
			t.Errorf("message %+v, want Unlimited", h)
		}
		go func() { _ = c.Close() }()
		guard.answer(1)
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read() of a closed connection: %v", err)
		}
	})
}

// TestListenerClosed checks that a closed listener answers accepted connections, and leaves the others to the guard.
func TestListenerClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, guard := newListener(t, false)
		guard.ask(1, 0, get)
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		guard.ask(2, 0, get)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept() of a closed listener: %v", err)
		}
		go func() {
			_, _ = io.WriteString(c, "answer")
			_ = c.Close()
		}()
		if text, _ := guard.answer(1); text != "answer" {
			t.Errorf("answer %q", text)
		}
		synctest.Wait()
		if n, err := guard.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the channel stays open: %d bytes, %v", n, err)
		}
	})
}

// TestCallIsAnsweredOnce checks that the end of a gRPC call's answer is sent at once, while the connection stays open.
func TestCallIsAnsweredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, guard := newListener(t, true)
		guard.ask(1, 0, wire.Preface+wire.Settings)
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		const headers, ends = "\x00\x00\x01\x01\x04\x00\x00\x00\x01h", "\x00\x00\x01\x01\x05\x00\x00\x00\x01h"
		go func() {
			_, _ = io.WriteString(c, wire.Settings+headers)
			_, _ = io.WriteString(c, ends)
		}()
		if text, messages := guard.answer(1); text != wire.Settings+headers+ends || messages != 1 {
			t.Errorf("answer %q in %d messages", text, messages)
		}
		synctest.Wait()
		if _, err := io.WriteString(c, "more"); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write() after the answer: %v", err)
		}
		_ = c.Close()
	})
}
