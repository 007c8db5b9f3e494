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

// pod is an address on which applications listen that note who comes.
type pod struct {
	t  testing.TB
	ip netip.Addr

	mu   sync.Mutex
	apps map[int]*app
	next int
}

// newPod takes an address of the loopback network that nobody else is likely to have.
func newPod(t testing.TB) *pod {
	b := func(n int) byte { return byte(1 + rand.IntN(n)) }
	return &pod{t: t, ip: netip.AddrFrom4([4]byte{127, b(250), b(250), b(250)}), apps: map[int]*app{}, next: 12000}
}

// app is one port of the pod.
type app struct {
	port int
	own  int // connections of untouched

	mu          sync.Mutex
	connections int
	heads       []string // of requests
	times       []time.Time
}

// listen notes connections on a port, and answers each request with what serve writes; nil notes only. Port 0 takes a free one.
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
				_ = c.Close() // it should not have come
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

// freePort returns one that nobody listens on.
func (p *pod) freePort() int {
	p.t.Helper()
	l := p.listener(0)
	defer func() { _ = l.Close() }() // it is for the caller
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

// seen returns the connections that have come, when, and the requests on them.
func (a *app) seen() (connections int, times []time.Time, heads []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.connections, append([]time.Time(nil), a.times...), append([]string(nil), a.heads...)
}

// untouched fails the test if any application of the pod has seen a connection. One of its own, behind all that came, shows
// that the queue is empty, and that connections are seen.
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
		_ = c.Close() // it is seen
		a.own++
		if n := a.await(t, a.own); n > a.own {
			_, _, heads := a.seen()
			t.Errorf("port %d has seen %d connections and %.300q, want none", port, n-a.own, heads)
		}
	}
}

// await returns how many connections there were when there were so many, or fails the test.
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

// answer is an application's that always says the same.
func answer(text string) func(net.Conn, string) {
	return func(c net.Conn, _ string) { _, _ = io.WriteString(c, text) } // the agent may have closed it
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"

// serveHTTP runs a server of net/http on a port of the pod, for what needs one.
func (p *pod) serveHTTP(s *http.Server, serve func(l net.Listener) error) int {
	p.t.Helper()
	l := p.listener(0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = serve(l) // it ends with Close
	}()
	p.t.Cleanup(func() { _ = s.Close(); <-done })
	return l.Addr().(*net.TCPAddr).Port
}
