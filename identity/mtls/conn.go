package mtls

import (
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// connLife returns how long a connection may last whose certificate is valid for left: 80 to 90 % of that, at random, so
// that proxies whose certificates were issued together do not reconnect together. By then they have a new certificate,
// which they get after two thirds of the validity of the old one.
func connLife(left time.Duration) time.Duration {
	return time.Duration(float64(left) * (0.8 + 0.1*rand.Float64())) //nolint:gosec // it spreads load and guards nothing
}

// place is a *connlimit.Place of any source.
type place interface {
	Busy()
	Idle()
	Begin() (end func())
	Leave()
}

// guardedConn is a connection with limits: on its life, on the bytes read or on how fast they are, and with a place that it may lose.
type guardedConn struct {
	net.Conn
	hello   []byte        // read already; for the goroutine that reads
	turn    place         // during the handshake, idle while a read waits for the client; for the goroutine that reads
	longest time.Duration // that a read has waited in the handshake; for the goroutine that reads
	budget  atomic.Int64  // bytes that may still be read, unless there is a pace
	pace    *rate.Limiter

	ended chan struct{} // closed with the connection
	aged  atomic.Bool   // it has reached its age

	mu      sync.Mutex
	closed  bool
	place   place // after the handshake
	timer   *time.Timer
	cleanup func()

	settled time.Time // when the handshake ended
}

func newGuardedConn(raw net.Conn) *guardedConn {
	return &guardedConn{Conn: raw, ended: make(chan struct{})}
}

var (
	errTooMany = errors.New("too many connections, and this one has waited for too long")
	errTooLong = errors.New("too many bytes on a connection without a client certificate")
)

// Read implements net.Conn.
func (g *guardedConn) Read(b []byte) (int, error) {
	n, err := g.read(b)
	if d := g.charge(n); d > 0 {
		pause := time.NewTimer(min(d, longestPause))
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-g.ended:
		}
	}
	if g.pace == nil && g.budget.Load() < 0 {
		return 0, errTooLong
	}
	return n, err
}

// longestPause is how long a connection is not read at most: meanwhile it does not notice that its time is over.
const longestPause = time.Second

// charge returns how long the next bytes are not read.
func (g *guardedConn) charge(n int) time.Duration {
	if g.pace != nil {
		return g.pace.ReserveN(time.Now(), n).Delay()
	}
	g.budget.Add(int64(-n))
	return 0
}

func (g *guardedConn) read(b []byte) (int, error) {
	if len(g.hello) > 0 {
		n := copy(b, g.hello)
		g.hello = g.hello[n:]
		return n, nil
	}
	if g.turn == nil {
		return g.Conn.Read(b)
	}
	g.turn.Idle()
	begin := time.Now()
	n, err := g.Conn.Read(b)
	g.longest = max(g.longest, time.Since(begin))
	g.turn.Busy()
	return n, err
}

// settle ends the handshake: the connection has this place from now on, and with a pace reads at that instead of having a budget. cleanup
// is called when it is closed, by either side. settle is called at most once.
func (g *guardedConn) settle(p place, pace *rate.Limiter, cleanup func()) {
	g.mu.Lock()
	g.pace, g.place, g.cleanup, g.settled = pace, p, cleanup, time.Now()
	closed := g.closed
	g.mu.Unlock()
	if closed { // it has lost its place at once
		g.leave()
	}
}

// closeAfter closes the connection after d, and calls expired if it is still open then. It is called at most once.
func (g *guardedConn) closeAfter(d time.Duration, expired func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	g.timer = time.AfterFunc(d, func() {
		g.mu.Lock()
		open := !g.closed
		g.mu.Unlock()
		if open {
			expired()
		}
		_ = g.Close() // the reader gets the error
	})
}

// Close implements net.Conn.
func (g *guardedConn) Close() error {
	g.mu.Lock()
	first := !g.closed
	g.closed = true
	if g.timer != nil {
		g.timer.Stop()
	}
	hasPlace := g.place != nil
	g.mu.Unlock()
	if first {
		close(g.ended)
	}
	if first && hasPlace {
		g.leave()
	}
	return g.Conn.Close()
}

// leave frees the place of a connection that is closed.
func (g *guardedConn) leave() {
	g.place.Leave()
	g.cleanup()
}

// paces has the pace at which the connections of each proxy are read.
type paces struct {
	l limits

	mu sync.Mutex
	of map[mesh.ID]*pace
}

type pace struct {
	limiter *rate.Limiter
	conns   int
}

func (p *paces) take(id mesh.ID) *pace {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.of[id]
	if one == nil {
		one = &pace{limiter: rate.NewLimiter(p.l.identifiedRate, p.l.identifiedBurst)}
		p.of[id] = one
	}
	one.conns++
	return one
}

func (p *paces) leave(id mesh.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.of[id]
	if one.conns--; one.conns == 0 {
		p.forgetLater(id, one)
	}
}

// forgetLater keeps a pace until it has the whole burst again: a client that connects again has no other.
func (p *paces) forgetLater(id mesh.ID, one *pace) {
	refill := float64(p.l.identifiedBurst) / float64(p.l.identifiedRate)
	time.AfterFunc(time.Duration(refill*float64(time.Second)), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case one.conns > 0 || p.of[id] != one:
		case one.limiter.Tokens() < float64(p.l.identifiedBurst):
			p.forgetLater(id, one)
		default:
			delete(p.of, id)
		}
	})
}
