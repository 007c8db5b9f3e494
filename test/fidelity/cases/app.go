package cases

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http2"
)

// server is one port of an application.
type server struct {
	port int
	// tls makes the server use TLS.
	tls *tls.Config
	// late is how long after the first request the server begins to listen.
	late time.Duration
	// unready is how many connections are closed before the first one is served.
	unready int
	// listen creates the listener. Default: an ordinary one.
	listen func(address string) (net.Listener, error)
	// answer is called for each HTTP/1 request, or what looks like its head.
	answer func(*exchange)
	// answer2 is called for each HTTP/2 request, which ALPN or the preface shows.
	answer2 func(*exchange2)
	// settings are the server's first HTTP/2 settings.
	settings []http2.Setting
	// connection is called for each connection before anything is read. It replaces the two fields above.
	connection func(*exchange)
}

// Application is what the containers of a pod run, for one run of a case. It records everything that it receives.
type Application struct {
	addr  PodAddress
	ended chan struct{}

	owned sync.WaitGroup
	mu    sync.Mutex
	// The fields below are guarded by mu.
	seen      []*record
	open      map[net.Conn]bool
	barriers  map[string]chan struct{}
	listeners []net.Listener
	requests  int
	accepted  map[int]int // by port
}

// record is what one connection sent.
type record struct {
	text strings.Builder
}

// Start starts the application of a case in its pod.
func (c *Case) Start(addr PodAddress) (*Application, error) {
	all := http1(ok)
	if c.servers != nil {
		all = c.servers
	}
	a := &Application{
		addr: addr, ended: make(chan struct{}), open: map[net.Conn]bool{}, barriers: map[string]chan struct{}{},
		accepted: map[int]int{},
	}
	for _, s := range all(addr) {
		if s.late > 0 {
			a.owned.Go(func() {
				if a.wait(s.late) {
					_ = a.listen(s) // an error shows in the result of the case
				}
			})
		} else if err := a.listen(s); err != nil {
			a.End()
			return nil, err
		}
	}
	return a, nil
}

// ListenSoon listens on an address whose listener may just have ended: a program that is being started holds the
// listeners of this process until its code runs.
func ListenSoon(address string) (net.Listener, error) {
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(5 * time.Millisecond) {
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", address)
		if !InUse(err) || time.Now().After(deadline) {
			return l, err
		}
	}
}

// InUse reports whether an error says that another program listens on an address.
func InUse(err error) bool {
	// Errors of programs contain only the text.
	return err != nil && strings.Contains(err.Error(), syscall.EADDRINUSE.Error())
}

func (a *Application) listen(s server) error {
	listen := s.listen
	if listen == nil {
		listen = ListenSoon
	}
	l, err := listen(net.JoinHostPort(a.addr.IP, strconv.Itoa(s.port)))
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listeners = append(a.listeners, l)
	a.owned.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if r := a.accept(conn); r != nil {
				a.owned.Go(func() { a.serve(s, conn, r) })
			}
		}
	})
	return nil
}

// accept begins the record of a connection. It returns nil for connections of Settle.
func (a *Application) accept(conn net.Conn) *record {
	a.mu.Lock()
	defer a.mu.Unlock()
	from := conn.RemoteAddr().String()
	if barrier := a.barriers[from]; barrier != nil {
		delete(a.barriers, from)
		close(barrier)
		_ = conn.Close() // Settle does not read it
		return nil
	}
	a.open[conn] = true
	r := &record{}
	a.seen = append(a.seen, r)
	return r
}

// Settle waits until everything that was sent has been read. Connections are accepted in order, and the client has
// closed each connection before ours.
//
// It is an error if a connection stays open, since more data could arrive on it.
func (a *Application) Settle() error {
	a.mu.Lock()
	listeners := slices.Clone(a.listeners)
	a.mu.Unlock()
	for _, l := range listeners {
		if _, full := l.(*fullListener); !full {
			a.barrier(l.Addr().String())
		}
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		a.mu.Lock()
		open := len(a.open)
		a.mu.Unlock()
		if open == 0 {
			return nil
		}
		a.wait(time.Millisecond)
	}
	return errors.New("wait for the end of connections: some are still open after a minute")
}

func (a *Application) barrier(address string) {
	// The source address of the connection must be known before the connection is accepted.
	dialer := net.Dialer{Timeout: time.Minute, LocalAddr: &net.TCPAddr{IP: net.ParseIP(a.addr.IP)}}
	passed := make(chan struct{})
	a.mu.Lock()
	conn, err := dialer.Dial("tcp", address)
	if err == nil {
		a.barriers[conn.LocalAddr().String()] = passed
	}
	a.mu.Unlock()
	if err != nil {
		return // the listener is closed
	}
	defer func() { _ = conn.Close() }() // nothing more is needed
	select {
	case <-passed:
	case <-time.After(time.Minute):
	}
}

// End stops the whole application.
func (a *Application) End() {
	close(a.ended)
	a.mu.Lock()
	for _, l := range a.listeners {
		_ = l.Close() // the next bind would fail
	}
	for conn := range a.open {
		_ = conn.Close() // it may be closed already
	}
	a.mu.Unlock()
	a.owned.Wait()
}

// wait returns false if the application ends first.
func (a *Application) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-a.ended:
		return false
	}
}

// Log returns what each connection sent, in the order of the connections.
func (a *Application) Log() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []string
	for _, r := range a.seen {
		all = append(all, r.text.String())
	}
	return all
}

func (a *Application) serve(s server, conn net.Conn, r *record) {
	defer func() {
		a.mu.Lock()
		delete(a.open, conn)
		a.mu.Unlock()
		_ = conn.Close() // it may be closed already
	}()
	note := func(format string, values ...any) {
		a.mu.Lock()
		defer a.mu.Unlock()
		fmt.Fprintf(&r.text, format, values...)
	}
	note("port %d\n", s.port)
	x := &exchange{Application: a, conn: conn, tcp: conn.(*net.TCPConn), note: note}
	if a.connected(s.port) <= s.unready {
		return
	}
	if s.connection != nil {
		s.connection(x)
		return
	}
	if s.tls != nil {
		secure := tls.Server(conn, withHello(s.tls, note))
		if err := secure.HandshakeContext(context.Background()); err != nil {
			return
		}
		x.conn = secure
	}
	x.buffer()
	if s.answer2 != nil {
		serve2(x, s.answer2, s.settings...)
		return
	}
	for x.next() {
		s.answer(x)
	}
}

// withHello notes what a client offers.
func withHello(config *tls.Config, note func(string, ...any)) *tls.Config {
	config = config.Clone()
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		note("TLS: name %q, ALPN %q, versions %x, suites %x, curves %v\n", hello.ServerName, hello.SupportedProtos,
			hello.SupportedVersions, hello.CipherSuites, hello.SupportedCurves)
		return nil, nil
	}
	return config
}

// exchange is one request and its answer.
type exchange struct {
	*Application
	conn net.Conn
	tcp  *net.TCPConn
	read *bufio.Reader
	note func(string, ...any)
	// head is the request with all headers. target is the middle of its first line.
	head, target string
	// n is the number of the request to the application, from 1.
	n      int
	closed bool
}

// connected counts a connection to a port.
func (a *Application) connected(port int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.accepted[port]++
	return a.accepted[port]
}

// buffer makes a connection readable that is not served as HTTP.
func (x *exchange) buffer() { x.read = bufio.NewReaderSize(x.conn, 1<<16) }

// next reads the head of a request. TLS is answered as HTTP servers do.
func (x *exchange) next() bool {
	if x.closed {
		return false
	}
	if first, err := x.read.Peek(1); err == nil && first[0] == 0x16 {
		x.note("a ClientHello\n") // its content is random
		x.raw("HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")
		x.drain()
		return false
	}
	var head strings.Builder
	for {
		line, err := x.read.ReadString('\n')
		head.WriteString(line)
		if err != nil || line == "\r\n" {
			x.note("%s", head.String())
			if err != nil {
				return false
			}
			break
		}
	}
	x.head = head.String()
	if fields := strings.SplitN(x.head, " ", 2); len(fields) == 2 {
		line, _, _ := strings.Cut(fields[1], "\r\n")
		x.target = strings.TrimSuffix(line, " HTTP/1.1")
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.requests++
	x.n = x.requests
	return true
}

// raw sends text unchanged.
func (x *exchange) raw(text string) { _, _ = io.WriteString(x.conn, text) }

// slowly sends text byte by byte.
func (x *exchange) slowly(text string, pause time.Duration) {
	for i := range len(text) {
		x.raw(text[i : i+1])
		if !x.wait(pause) {
			return
		}
	}
}

// reply sends a whole answer, and keeps the connection open if the client does.
func (x *exchange) reply(code int, body string, headers ...string) {
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d Reason\r\nContent-Length: %d\r\n", code, len(body))
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	x.raw(b.String() + "\r\n" + body)
	if strings.Contains(x.head, "\r\nConnection: close\r\n") {
		x.close()
	}
}

// close ends the connection.
func (x *exchange) close() {
	x.closed = true
	_ = x.conn.Close() // the other side may have closed it
}

// reset breaks the connection.
func (x *exchange) reset() {
	x.closed = true
	_ = x.tcp.SetLinger(0)
	_ = x.tcp.Close() // like above
}

// cut closes the connection below TLS, without close_notify.
func (x *exchange) cut() {
	x.closed = true
	_ = x.tcp.Close() // like above
}

// hang does nothing until the other side closes the connection.
func (x *exchange) hang() {
	x.closed = true
	_, _ = io.Copy(io.Discard, x.conn) // any end is fine
}

// drain ends the connection so that everything sent arrives: a close with unread data would be a reset.
func (x *exchange) drain() {
	_ = x.tcp.CloseWrite()
	x.hang()
}
