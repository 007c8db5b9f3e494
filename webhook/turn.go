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

// The memory of requests is shared by their sources in places of placeSize. A request has one from its header on, and more as its body
// arrives: what is announced takes none. Where all are taken, the source with the most loses one, of the request whose peer has been
// waited for longest.
const (
	placeSize = 32 << 10
	maxPlaces = 1024 // of all requests together: 32 MiB
	firstRead = 4 << 10

	// sendTime is how long an answer may take before its peer counts as one that is waited for.
	sendTime = 500 * time.Millisecond
	// arriveTime is how long a body may take to come before its peer is waited for.
	arriveTime = 20 * time.Millisecond
	// lastWords is how long the answer to a request may take that was lost.
	lastWords = 200 * time.Millisecond
)

// turn is what one request holds of the server, until it is answered.
type turn struct {
	owner   *connlimit.Places[netip.Prefix]
	source  netip.Prefix
	peer    *caller
	control *http.ResponseController
	cancel  context.CancelFunc
	places  []*connlimit.Place[netip.Prefix]

	arriving *time.Timer // ends when the peer is waited for

	mu      sync.Mutex
	arrived bool        // all of the body
	gone    bool        // it was lost
	sending *time.Timer // ends when the peer is waited for; nil before there is an answer
	ended   bool
}

// takeTurn begins a request. The context ends when it is lost.
func (s *Server) takeTurn(w http.ResponseWriter, r *http.Request) (*turn, context.Context) {
	ctx, cancel := context.WithCancel(r.Context())
	from, _ := netip.ParseAddrPort(r.RemoteAddr) // a Unix socket is the zero source
	t := &turn{
		owner: s.turns, source: connlimit.Source(from.Addr()), peer: callerOf(ctx), control: http.NewResponseController(w), cancel: cancel,
	}
	first := s.turns.TakeBusy(t.source, t.lose) // a body that comes at once makes no room for others
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

// hold has the turn hold places for so many bytes. Each time that these are twice as many, the peer is waited for from then on: a body that
// comes makes no room for one that does not.
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

// lose has whatever waits for the peer, and for others, end at once. A request that is lost before its answer is sent gets one.
func (t *turn) lose() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return // the response is another request's by now
	}
	t.gone = true
	t.cancel()
	past := time.Unix(1, 0)
	_ = t.control.SetReadDeadline(past) // not supported without a network, as all of these
	if t.sending != nil {
		_ = t.control.SetWriteDeadline(past)
	}
}

func (t *turn) lost() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gone
}

// work says that the body is there, and the peer waits for the server.
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

// send says that the answer is there. If the peer does not take it soon, it is waited for.
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
	if t.gone { // it has no places any more, so that it must not take long
		_ = t.control.SetWriteDeadline(time.Now().Add(lastWords))
	}
}

// end sends what is buffered of the answer, and frees the places. Afterwards the peer would be waited for without being counted.
func (t *turn) end() {
	t.send()
	_ = t.control.Flush() // a peer that has gone asks again
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

// read reads a body of that length. Its buffer grows with what arrives.
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
			t.peer.received(min(length-len(buffer), window)) // what is on its way
			return nil, errCrowded
		case err != nil && len(buffer) < length:
			t.peer.wasted()
			return nil, fmt.Errorf("%w: read it: %w", errMalformed, err)
		}
	}
	return buffer, nil
}
