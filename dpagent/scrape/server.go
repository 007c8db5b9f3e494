package scrape

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/internal/connlimit"
)

// MaxConnections is far more than Prometheus needs, which keeps one connection open.
const MaxConnections = 64

const (
	// sendBuffer limits the kernel's buffer for one client, in bytes, and unreadTimeout its duration. Otherwise a client
	// that never reads could make the kernel hold some MiB until long after the connection was closed.
	sendBuffer    = 64 << 10
	unreadTimeout = 10 * time.Second
	// answerTimeout bounds writing a page. It leaves time for the agent's metrics if Envoy does not answer.
	answerTimeout = scrapeTimeout + time.Second
)

// Server answers every client that can reach its port, but only at /metrics. It is safe for concurrent use.
type Server struct {
	page    *Page
	include []string
	scrapes *prometheus.CounterVec
}

var _ http.Handler = (*Server)(nil)

// NewServer returns a server of a page, with the metrics of Envoy whose names have one of the prefixes. The page also
// has the Server's own metrics.
func NewServer(p *Page, include []string) *Server {
	s := &Server{page: p, include: include, scrapes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sonde_dpagent_scrapes_total",
		Help: "Scrapes at --metrics-addr, by result: complete, without_envoy, cut (connection closed in the middle), failed, or busy (too many scrapes).",
	}, []string{"result"})}
	for _, r := range []result{resultComplete, resultWithoutEnvoy, resultCut, resultFailed, resultBusy} {
		s.scrapes.WithLabelValues(string(r))
	}
	p.own.MustRegister(s.scrapes)
	return s
}

// Listen opens a port on which a client that does not read costs little memory.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		// Accepted connections inherit these options of a listening socket.
		controlErr := c.Control(func(fd uintptr) {
			if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer); err == nil {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unreadTimeout/time.Millisecond))
			}
		})
		if controlErr != nil {
			return controlErr
		}
		return err //nolint:wrapcheck // net names the operation
	}}
	return config.Listen(ctx, "tcp", address) //nolint:wrapcheck // the error has the address
}

// Serve serves up to this many connections on l until ctx ends, and closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener, connections int) error {
	return health.Serve(ctx, l, s, health.Limits{Connections: connections, HTTP1: true}) //nolint:wrapcheck // the error has the address
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	switch {
	case r.URL.Path != mesh.PathMetrics:
		http.Error(w, "not found: must be "+mesh.PathMetrics, http.StatusNotFound)
		return
	case r.Method == http.MethodHead:
		header.Set("Content-Type", string(format))
		return
	case r.Method != http.MethodGet:
		header.Set("Allow", "GET, HEAD")
		http.Error(w, fmt.Sprintf("method %s: must be GET or HEAD", r.Method), http.StatusMethodNotAllowed)
		return
	case r.ContentLength != 0: // the server would not notice that its client has disconnected
		header.Set("Connection", "close")
		http.Error(w, "the request must have no body", http.StatusBadRequest)
		return
	}
	result := s.page.scrape(w, r, s.include, true)
	s.scrapes.WithLabelValues(string(result)).Inc()
	if result == resultCut {
		panic(http.ErrAbortHandler)
	}
}

// scrape responds with the page, or with an error if there are too many scrapes. keep is as in write. Between the
// starts of paced scrapes there is a pause.
func (p *Page) scrape(w http.ResponseWriter, r *http.Request, keep []string, paced bool) result {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	c := &client{ResponseWriter: w, control: http.NewResponseController(w), cancel: cancel}
	defer c.end()
	source := sourceOf(r)
	place, ok := p.turns.await(ctx, source, paced, c.lost)
	if !ok {
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
		http.Error(w, "too many scrapes", http.StatusServiceUnavailable)
		return resultBusy
	}
	defer place.Leave()
	p.turns.record.add(source, true) // replaced when the scrape succeeds
	defer func() { p.turns.record.add(source, c.slow()) }()
	c.place = place
	ctx, stop := context.WithTimeout(ctx, scrapeTimeout)
	defer stop()
	if err := c.until(time.Now().Add(answerTimeout)); err != nil {
		return resultCut
	}
	return p.write(ctx, c, keep)
}

// sourceOf returns the source of a request.
func sourceOf(r *http.Request) netip.Prefix {
	at, _ := netip.ParseAddrPort(r.RemoteAddr) // written by the server
	return connlimit.Source(at.Addr())
}

// client receives a page. While it does not read, a waiting client may get its place.
type client struct {
	http.ResponseWriter
	control *http.ResponseController
	place   *connlimit.Place[netip.Prefix]
	cancel  func()
	unread  time.Duration // total time of blocked writes; for the writer only

	mu             sync.Mutex
	ended, evicted bool
}

// slow reports whether the client reads too slowly for others to wait for it.
func (c *client) slow() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.evicted || c.unread > totalPatience
}

// Write implements io.Writer.
func (c *client) Write(b []byte) (int, error) {
	c.place.IdleFor(max(0, c.unread-(totalPatience-readPatience)))
	defer func(began time.Time) {
		c.unread += time.Since(began)
		c.place.Busy()
	}(time.Now())
	return c.ResponseWriter.Write(b) //nolint:wrapcheck // the writer's own error
}

// until makes writes fail after t. It does nothing once the request has ended, since the connection may carry the next
// request.
func (c *client) until(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil
	}
	return c.control.SetWriteDeadline(t) //nolint:wrapcheck // the writer's own error
}

// lost ends the scrape, because others waited for its place while this client did not read. Any goroutine may call it.
func (c *client) lost() {
	c.cancel()
	c.mu.Lock()
	c.evicted = true
	c.mu.Unlock()
	_ = c.until(time.Now()) // otherwise the server's own deadline ends it
}

// end marks the end of the request.
func (c *client) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}
