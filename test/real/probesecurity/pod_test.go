package probesecurity

import (
	"bufio"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// pod is an address with applications that record their connections.
type pod struct {
	t  testing.TB
	ip netip.Addr

	mu   sync.Mutex
	apps map[int]*app
	next int
}

// newPod uses an address of the loopback network that is probably free.
func newPod(t testing.TB) *pod {
	b := func(n int) byte { return byte(1 + rand.IntN(n)) }
	return &pod{t: t, ip: netip.AddrFrom4([4]byte{127, b(250), b(250), b(250)}), apps: map[int]*app{}, next: 12000}
}

// app is one port of the pod.
type app struct {
	port int
	own  int // connections that untouched itself made

	mu          sync.Mutex
	connections int
	heads       []string // of requests
	times       []time.Time
}

// listen records connections on a port, and responds to each request with serve; nil only records. Port 0 means a
// free port.
func (p *pod) listen(port int, serve func(c net.Conn, head string)) *app {
	p.t.Helper()
	l := p.listener(port)
	a := &app{port: l.Addr().(*net.TCPAddr).Port}
	p.mu.Lock()
	p.apps[a.port] = a
	p.mu.Unlock()
	var running sync.WaitGroup
	var open sync.Map
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			a.connected()
			if serve == nil {
				_ = c.Close() // a connection that should not exist
				continue
			}
			open.Store(c, nil)
			running.Go(func() {
				defer func() { _ = c.Close(); open.Delete(c) }()
				if head, ok := readHead(c); ok {
					a.asked(head)
					serve(c, head)
				}
			})
		}
	})
	p.t.Cleanup(func() {
		_ = l.Close()
		open.Range(func(c, _ any) bool { _ = c.(net.Conn).Close(); return true })
		running.Wait()
	})
	return a
}

func (p *pod) listener(port int) net.Listener {
	p.t.Helper()
	for {
		try := port
		if port == 0 {
			p.next++
			try = p.next
		}
		l, err := net.Listen("tcp", p.address(try))
		if err == nil {
			return l
		}
		if port != 0 || p.next > 20000 {
			p.t.Fatal(err)
		}
	}
}

// freePort returns a free port.
func (p *pod) freePort() int {
	p.t.Helper()
	l := p.listener(0)
	defer func() { _ = l.Close() }() // the caller listens on it
	return l.Addr().(*net.TCPAddr).Port
}

func (p *pod) address(port int) string { return net.JoinHostPort(p.ip.String(), strconv.Itoa(port)) }

// readHead reads a request up to its empty line.
func readHead(c net.Conn) (string, bool) {
	var head strings.Builder
	for r := bufio.NewReader(c); ; {
		line, err := r.ReadString('\n')
		head.WriteString(line)
		if err != nil {
			return head.String(), false
		}
		if line == "\r\n" {
			return head.String(), true
		}
	}
}

func (a *app) connected() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.connections++
	a.times = append(a.times, time.Now())
}

func (a *app) asked(head string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heads = append(a.heads, head)
}

// seen returns the number of connections, their times, and their requests.
func (a *app) seen() (connections int, times []time.Time, heads []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.connections, append([]time.Time(nil), a.times...), append([]string(nil), a.heads...)
}

// untouched fails the test if any application of the pod has a connection. It makes one connection itself, which
// shows that earlier connections would have been recorded.
func (p *pod) untouched(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for port, a := range p.apps {
		c, err := net.Dial("tcp", p.address(port))
		if err != nil {
			t.Errorf("look at port %d: %v", port, err)
			continue
		}
		_ = c.Close() // the application has recorded it
		a.own++
		if n := a.await(t, a.own); n > a.own {
			_, _, heads := a.seen()
			t.Errorf("port %d has %d connections and %.300q, want none", port, n-a.own, heads)
		}
	}
}

// await waits until want connections have arrived, or fails the test. It returns their number.
func (a *app) await(t *testing.T, want int) int {
	t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(callLimit); ; <-ticker.C {
		n, _, _ := a.seen()
		if n >= want {
			return n
		}
		if time.Now().After(deadline) {
			t.Errorf("port %d has seen %d connections, want %d", a.port, n, want)
			return n
		}
	}
}

// answer returns an application that always sends the same response.
func answer(text string) func(net.Conn, string) {
	return func(c net.Conn, _ string) { _, _ = io.WriteString(c, text) } // the agent may have closed the connection
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"

// serveHTTP runs a server of net/http on a port of the pod.
func (p *pod) serveHTTP(s *http.Server, serve func(l net.Listener) error) int {
	p.t.Helper()
	l := p.listener(0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = serve(l) // Close ends it
	}()
	p.t.Cleanup(func() { _ = s.Close(); <-done })
	return l.Addr().(*net.TCPAddr).Port
}
