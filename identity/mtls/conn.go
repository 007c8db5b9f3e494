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

// connLife returns the lifetime of a connection whose certificate is valid for left: a random 80 to 90 % of left, so
// that proxies that got their certificates at the same time do not all reconnect at the same time. By then they have a
// new certificate, since they renew it after two thirds of its validity.
func connLife(left time.Duration) time.Duration {
	return time.Duration(float64(left) * (0.8 + 0.1*rand.Float64())) //nolint:gosec // jitter, not a secret
}

// place is a *connlimit.Place for any type of source.
type place interface {
	Busy()
	Idle()
	Begin() (end func())
	Leave()
}

// guardedConn is a connection with limits on its lifetime and on the bytes read or their rate. It holds a place, which
// it may lose.
type guardedConn struct {
	net.Conn
	hello   []byte        // bytes that were already read; only for the reading goroutine
	turn    place         // place in the handshake, marked idle while a read waits; only for the reading goroutine
	longest time.Duration // longest read in the handshake; only for the reading goroutine
	budget  atomic.Int64  // remaining bytes, unused with a pace
	pace    *rate.Limiter

	ended chan struct{} // closed with the connection
	aged  atomic.Bool   // the connection has reached its age

	mu      sync.Mutex
	closed  bool
	place   place // set after the handshake
	timer   *time.Timer
	cleanup func()

	settled time.Time // end of the handshake
}

func newGuardedConn(raw net.Conn) *guardedConn {
	return &guardedConn{Conn: raw, ended: make(chan struct{})}
}

var (
	errTooMany = errors.New("too many connections, and this one was idle too long")
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

// longestPause bounds a pause in reading, during which the connection does not detect that it was closed.
const longestPause = time.Second

// charge returns the pause before the next read.
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

// settle ends the handshake: the connection gets this place and, with a pace, a rate limit instead of a budget. settle
// calls cleanup when either side closes the connection. Call settle at most once.
func (g *guardedConn) settle(p place, pace *rate.Limiter, cleanup func()) {
	g.mu.Lock()
	g.pace, g.place, g.cleanup, g.settled = pace, p, cleanup, time.Now()
	closed := g.closed
	g.mu.Unlock()
	if closed { // during the handshake, when Close had no place to free
		g.leave()
	}
}

// closeAfter closes the connection after d, and calls expired if it was still open. Call it at most once.
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
		_ = g.Close() // the reading goroutine gets the error
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

// paces limits the read rate of each proxy's connections.
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

// forgetLater keeps a pace until its burst is full again, so that a client that reconnects gets the same pace.
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
