package webhook

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/internal/connlimit"
)

// Sources share the memory for requests in places of placeSize bytes. A request gets one place for its header, and more
// as its body arrives. If no place is free, the source with the most places loses the request whose peer has been idle
// for longest.
const (
	placeSize = 32 << 10
	maxPlaces = 1024 // for all requests together: 32 MiB
	firstRead = 4 << 10

	// sendTime is how long a response may take before its peer counts as idle.
	sendTime = 500 * time.Millisecond
	// arriveTime is how long a body may take before its peer counts as idle.
	arriveTime = 20 * time.Millisecond
	// evictedWriteTimeout bounds the response to an evicted request.
	evictedWriteTimeout = 200 * time.Millisecond
)

// turn holds a request's places until it is answered.
type turn struct {
	owner   *connlimit.Places[netip.Prefix]
	source  netip.Prefix
	peer    *caller
	control *http.ResponseController
	cancel  context.CancelFunc
	places  []*connlimit.Place[netip.Prefix]

	arriving *time.Timer // marks the peer as idle

	mu      sync.Mutex
	arrived bool        // the complete body has arrived
	gone    bool        // the request was evicted
	sending *time.Timer // marks the peer as idle; nil before there is an answer
	ended   bool
}

// takeTurn begins a request. The context ends if the request is evicted.
func (s *Server) takeTurn(w http.ResponseWriter, r *http.Request) (*turn, context.Context) {
	ctx, cancel := context.WithCancel(r.Context())
	from, _ := netip.ParseAddrPort(r.RemoteAddr) // a Unix socket has the zero source
	t := &turn{
		owner: s.turns, source: connlimit.Source(from.Addr()), peer: callerOf(ctx), control: http.NewResponseController(w),
		cancel: cancel,
	}
	first := s.turns.TakeBusy(t.source, t.lose) // busy: a body that arrives immediately is not evicted
	t.places = append(t.places, first)
	t.arriving = time.AfterFunc(arriveTime, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if !t.arrived {
			first.Idle()
		}
	})
	return t, ctx
}

// hold takes places for this number of bytes. Each time it doubles, the idle time of the peer starts anew, so that a
// body that arrives is not evicted for one that does not.
func (t *turn) hold(bytes int) {
	for len(t.places)*placeSize < bytes {
		if n := len(t.places); n&(n-1) == 0 {
			for _, p := range t.places {
				p.Idle()
			}
		}
		t.places = append(t.places, t.owner.Take(t.source, t.lose))
	}
}

// lose evicts the request: all waiting ends at once. A request without a response still gets one.
func (t *turn) lose() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return // the response now belongs to another request
	}
	t.gone = true
	t.cancel()
	past := time.Unix(1, 0)
	_ = t.control.SetReadDeadline(past) // returns an error in tests without a network, like the calls below
	if t.sending != nil {
		_ = t.control.SetWriteDeadline(past)
	}
}

func (t *turn) lost() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gone
}

// work marks that the body has arrived, and that the peer waits for the server.
func (t *turn) work() {
	t.mu.Lock()
	t.arrived = true
	t.mu.Unlock()
	t.busy()
}

func (t *turn) busy() {
	for _, p := range t.places {
		p.Busy()
	}
}

// send marks that the response is ready. If the peer does not read it soon, the peer counts as idle.
func (t *turn) send() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sending != nil {
		return
	}
	t.arrived = true
	t.busy()
	t.sending = time.AfterFunc(sendTime, func() {
		for _, p := range t.places {
			p.Idle()
		}
	})
	if t.gone { // an evicted request has no places, so limit the time of its response
		_ = t.control.SetWriteDeadline(time.Now().Add(evictedWriteTimeout))
	}
}

// end flushes the response before it frees the places: later, nothing would limit a slow peer.
func (t *turn) end() {
	t.send()
	_ = t.control.Flush() // ignore errors: a disconnected peer retries
	t.sending.Stop()
	t.arriving.Stop()
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	t.cancel()
	for _, p := range t.places {
		p.Leave()
	}
}

// read reads a body of this length. Its buffer grows as data arrives.
func (t *turn) read(body io.Reader, length int) ([]byte, error) {
	buffer := make([]byte, 0, min(length, firstRead))
	for len(buffer) < length {
		if len(buffer) == cap(buffer) {
			larger := make([]byte, len(buffer), min(length, 2*cap(buffer)))
			copy(larger, buffer)
			buffer = larger
		}
		n, err := body.Read(buffer[len(buffer):min(cap(buffer), len(buffer)+placeSize)])
		buffer = buffer[:len(buffer)+n]
		t.peer.received(n)
		t.hold(len(buffer))
		switch {
		case t.lost():
			t.peer.received(min(length-len(buffer), window)) // data in transit
			return nil, errCrowded
		case err != nil && len(buffer) < length:
			t.peer.wasted()
			return nil, fmt.Errorf("%w: read it: %w", errMalformed, err)
		}
	}
	return buffer, nil
}
