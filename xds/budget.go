package xds

import (
	"context"
	"maps"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What the requests of one proxy may have the server keep, and do.
const (
	// maxNameBytes is how many bytes of names all streams of one proxy may have. 10,000 endpoints and 10,000 routes with names of 80 bytes
	// are two thirds of it. Each name counts as itself and nameOverhead.
	maxNameBytes = 8 << 20
	// nameOverhead is what is kept beside a name while it waits for its answer, and until the proxy has ACKed that.
	nameOverhead = 192
	// maxInFlightBytes is how much of the responses of one stream is kept that wait for their ACK or NACK, or to be read: beyond it, changes
	// wait, unless the type has no response in flight. Each resource that a response mentions counts as mentionBytes.
	maxInFlightBytes = 2 << 20
	mentionBytes     = 128

	// Work is counted in units of about 50 µs: the work of one proxy per second, and at once. ACKs and what the mesh changes do not count.
	workRate  = 400
	workBurst = 2000
	// A stream that begins, a request that is no ACK, a NACK, and so many names in it or resources to be sent again because of it.
	streamWork   = 10
	requestWork  = 1
	nackWork     = 10
	namesPerWork = 20
	// manyNames is how many names make a request one of those of which the server handles one at a time for each proxy.
	manyNames = 1000
	// maxStreamDelay is how long a stream waits at most until it begins: its first request is kept meanwhile.
	maxStreamDelay = time.Second
)

// held returns how many bytes the names of a stream count.
func (p *proxy) held() int {
	size := p.statedBytes
	for _, s := range p.subscriptions {
		size += s.names.size()
	}
	for _, s := range p.unserved {
		for name := range s.pending {
			size += len(name) + nameOverhead
		}
	}
	return size
}

// inFlightIsFull reports whether another response of a type has to wait for the ACKs of those in flight.
func (p *proxy) inFlightIsFull(s *subscription) bool {
	return len(s.inFlight) >= p.window(s) || len(s.inFlight) > 0 && p.inFlightBytes >= maxInFlightBytes
}

// keptBytes returns how much is kept for a response until it is ACKed or NACKed, beside resources that others have as well.
func (r *response) keptBytes() int {
	size := (len(r.resources) + len(r.removed)) * mentionBytes
	for i := range r.removed {
		size += len(r.removed[i].name)
	}
	return size
}

// reserve makes sure that the names of all streams of a node are within the budget: the newest stream needs them, and the older ones, which may
// be half-open, end. The error says that the stream alone has too many.
func (s *Server) reserve(st *stream, size int) error {
	if size > maxNameBytes {
		return status.Errorf(codes.ResourceExhausted, "resource names: %d bytes with %d for each name: at most %d are allowed", size, nameOverhead, maxNameBytes)
	}
	if int(st.held.Swap(int64(size))) >= size {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[st.node]
	if n == nil {
		return nil // the stream has ended
	}
	total := 0
	for _, one := range n.streams {
		total += int(one.held.Load())
	}
	for _, old := range n.streams {
		if total <= maxNameBytes {
			break
		}
		if old == st {
			continue
		}
		total -= int(old.held.Load())
		old.end(status.Errorf(codes.ResourceExhausted, "resource names of all streams of node %q: more than %d bytes are not allowed", st.node, maxNameBytes))
	}
	return nil
}

// pace is how much work a node may still cause. It outlives the streams of the node, until it is like a new one.
type pace struct {
	*rate.Limiter
	turn chan struct{} // has an element while a request with many names is handled, and its work is waited for
}

// admitAtPace admits a stream of a node, at the pace of the node: reopening streams is work, too.
func (s *Server) admitAtPace(ctx context.Context, id string) (*pace, error) {
	if err := s.admit(ctx, id); err != nil {
		return nil, err
	}
	p := s.paceOf(id)
	r := p.ReserveN(time.Now(), streamWork)
	if d := r.Delay(); d > maxStreamDelay {
		r.Cancel()
		return nil, status.Errorf(codes.ResourceExhausted, "requests and streams of node %q: the next stream may begin in %s", id, d.Round(time.Millisecond))
	}
	wait(ctx, r.Delay())
	return p, nil
}

// paceOf returns the pace of a node.
func (s *Server) paceOf(id string) *pace {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.paces[id]; p != nil {
		return p
	}
	if len(s.paces) > 2*len(s.nodes)+100 {
		maps.DeleteFunc(s.paces, func(other string, p *pace) bool { return s.nodes[other] == nil && p.Tokens() >= workBurst })
	}
	p := &pace{rate.NewLimiter(workRate, workBurst), make(chan struct{}, 1)}
	s.paces[id] = p
	return p
}

// takeTurn waits for the turn of a request with so many names, or until ctx ends, and returns how the turn ends.
func (p *pace) takeTurn(ctx context.Context, names int) (end func()) {
	if names < manyNames {
		return func() {}
	}
	select {
	case p.turn <- struct{}{}:
		return func() { <-p.turn }
	case <-ctx.Done():
		return func() {}
	}
}

// charge charges work to the node of a stream, and waits as long as that takes at its pace, or until ctx ends.
func (st *stream) charge(ctx context.Context, work int) {
	if work > 0 {
		wait(ctx, st.pace.ReserveN(time.Now(), min(work, workBurst)).Delay())
	}
}

// wait waits for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	if d == 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// takeWork returns how much work the last request was.
func (p *proxy) takeWork() int {
	work := requestWork + p.asked/namesPerWork
	if p.acked && work == requestWork {
		work = 0
	}
	p.asked, p.acked = 0, false
	return work
}
