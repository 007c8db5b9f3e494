package xds

import (
	"context"
	"maps"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Limits on what the requests of one proxy may make the server keep and do.
const (
	// maxNameBytes limits the bytes of names of all streams of one proxy. 10,000 endpoints and 10,000 routes with names of
	// 80 bytes take two thirds of it. Each name takes its length plus nameOverhead.
	maxNameBytes = 8 << 20
	// nameOverhead is the memory for a name besides the name itself, while it waits for its response and until the proxy
	// ACKs it.
	nameOverhead = 192
	// maxInFlightBytes limits the kept responses of one stream that wait for their ACK or NACK, or to be read. Above the
	// limit changes wait, unless their type has no response in flight. Each resource mentioned in a response takes
	// mentionBytes.
	maxInFlightBytes = 2 << 20
	mentionBytes     = 128

	// Limits of the work that one proxy may cause per second, and at once, in units of about 50 µs. ACKs and changes of
	// the mesh cost nothing.
	workRate  = 400
	workBurst = 2000
	// Work of a new stream, of a request that is not an ACK, of a NACK, and the number of names or resent resources per
	// unit of work.
	streamWork   = 10
	requestWork  = 1
	nackWork     = 10
	namesPerWork = 20
	// manyNames is how many names make a request so large that the server handles one at a time per proxy.
	manyNames = 1000
	// maxStreamDelay bounds how long a stream waits until it begins: its first request is kept meanwhile.
	maxStreamDelay = time.Second
)

// held returns how many bytes of maxNameBytes the names of a stream take.
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

// keptBytes returns the memory for a response until it is ACKed or NACKed, besides shared resources.
func (r *response) keptBytes() int {
	size := (len(r.resources) + len(r.removed)) * mentionBytes
	for i := range r.removed {
		size += len(r.removed[i].name)
	}
	return size
}

// reserve keeps the names of all streams of a node within the budget. If they exceed it, the older streams, which may
// be half-open, end in favour of the newest one. The error means that the newest stream alone exceeds it.
func (s *Server) reserve(st *stream, size int) error {
	if size > maxNameBytes {
		return status.Errorf(codes.ResourceExhausted,
			"resource names: %d bytes with %d for each name: at most %d are allowed", size, nameOverhead, maxNameBytes)
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
		old.end(status.Errorf(codes.ResourceExhausted,
			"resource names of all streams of node %q: more than %d bytes are not allowed", st.node, maxNameBytes))
	}
	return nil
}

// pace tracks how much work a node may still cause. It outlives the node's streams until it is equal to a new one.
type pace struct {
	*rate.Limiter
	turn chan struct{} // has an element while a request with many names is handled and charged
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
		return nil, status.Errorf(codes.ResourceExhausted, "requests and streams of node %q: the next stream may begin in %s",
			id, d.Round(time.Millisecond))
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

// takeTurn waits for the turn of a request with many names, or until ctx ends. It returns a function that ends the
// turn.
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

// charge charges work to the node of a stream. It waits until the node's pace allows the work, or until ctx ends.
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

// takeWork returns the work that the last request caused.
func (p *proxy) takeWork() int {
	work := requestWork + p.asked/namesPerWork
	if p.acked && work == requestWork {
		work = 0
	}
	p.asked, p.acked = 0, false
	return work
}
