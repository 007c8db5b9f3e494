package replicas

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// helloTimeout is how long a stream may take for its first message.
	helloTimeout = 5 * time.Second
	// messageRate, per second, is more than a replica with 10,000 sessions that reconnect sends. Beyond it, messages are read more slowly.
	messageRate  = 10_000
	messageBurst = maxProxies
)

// receiver is a stream on which another replica tells what it knows.
type receiver struct {
	peers *Peers
	heard *heard
	ended chan struct{}
	why   error // set before ended is closed
}

// Report implements peerv1.PeerServiceServer.
func (s *service) Report(stream peerv1.PeerService_ReportServer) error {
	p := s.peers
	hello, err := s.awaitHello(stream)
	if err != nil {
		return p.refuse(addressOf(stream.Context()), err)
	}
	r, err := p.open(hello)
	if err != nil {
		return p.refuse(addressOf(stream.Context()), err)
	}
	defer p.close(r)
	p.o.Logger.InfoContext(stream.Context(), "replica heard", "replica", hello.GetReplica(), "version", hello.GetVersion())
	err = r.receive(stream)
	p.o.Logger.WarnContext(stream.Context(), "replica not heard any more, what it has said holds", "replica", hello.GetReplica(), "err", err)
	return err
}

// refuse counts and logs a replica that is refused.
func (p *Peers) refuse(peer string, err error) error {
	p.metrics.refused.Inc()
	p.o.Logger.Warn("replica refused", "peer", peer, "err", err)
	return err
}

func (s *service) awaitHello(stream peerv1.PeerService_ReportServer) (*peerv1.Hello, error) {
	name, err := s.caller(stream.Context())
	if err != nil {
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	type first struct {
		message *peerv1.ReportMessage
		err     error
	}
	received := make(chan first, 1)
	go func() { // until the stream ends, at the latest
		m, err := stream.Recv()
		received <- first{m, err}
	}()
	late := time.NewTimer(helloTimeout)
	defer late.Stop()
	select {
	case <-late.C:
		return nil, status.Errorf(codes.DeadlineExceeded, "no Hello within %s", helloTimeout)
	case f := <-received:
		if f.err != nil {
			return nil, f.err
		}
		hello := f.message.GetHello()
		return hello, checkHello(hello, name)
	}
}

// open makes the stream of that Hello the one of its replica.
func (p *Peers) open(hello *peerv1.Hello) (*receiver, error) {
	name := hello.GetReplica()
	var forgotten []mesh.ID
	defer func() { // without mu
		for _, id := range forgotten {
			p.local.Heard(id)
		}
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.heard[name]
	switch {
	case name == p.o.Name && hello.GetProcess() != p.hello.GetProcess():
		return nil, status.Errorf(codes.AlreadyExists, "replica: %q: is the name of this replica, too: give each one a name of its own", name)
	case name == p.o.Name:
		return nil, status.Error(codes.AlreadyExists, "replica: it has called itself")
	case old != nil && old.lost.IsZero() && old.hello.GetProcess() != hello.GetProcess() && !hello.GetStarted().AsTime().After(old.hello.GetStarted().AsTime()):
		return nil, status.Errorf(codes.AlreadyExists, "replica: %q: another process with this name has started later, and is connected: give each replica a name of its own", name)
	case old == nil && len(p.heard) >= maxReplicas:
		var dropped bool
		if forgotten, dropped = p.dropLost(); !dropped {
			return nil, status.Errorf(codes.ResourceExhausted, "%d replicas are connected, which is the limit", len(p.heard))
		}
	}
	r := &receiver{peers: p, ended: make(chan struct{})}
	h := &heard{
		hello: hello, proxies: map[mesh.ID]facts.Said{}, stale: map[mesh.ID]struct{}{}, end: r.endOnce(),
		answers: map[mesh.ID]uint64{}, answer: run.NewSignal(),
	}
	if old != nil {
		old.end(errReplaced)
		// What it has said holds until it says something else, or that this is all.
		h.proxies = old.proxies
		if old.hello.GetProcess() == hello.GetProcess() {
			h.replica, h.revision, h.complete = old.replica, old.revision, old.complete
		}
		for id := range h.proxies {
			h.stale[id] = struct{}{}
		}
	}
	r.heard, p.heard[name] = h, h
	return r, nil
}

// dropLost forgets the replica that was lost first, and returns of which proxies it has said something. It returns false if none is lost. mu is
// held.
func (p *Peers) dropLost() (proxies []mesh.ID, dropped bool) {
	var first string
	for name, h := range p.heard {
		if !h.lost.IsZero() && (first == "" || h.lost.Before(p.heard[first].lost)) {
			first = name
		}
	}
	if first == "" {
		return nil, false
	}
	proxies = slices.Collect(maps.Keys(p.heard[first].proxies))
	delete(p.heard, first)
	return proxies, true
}

var errReplaced = status.Error(codes.Aborted, "a newer stream of this replica has taken over")

// endOnce returns a function that ends the stream.
func (r *receiver) endOnce() func(error) {
	var once sync.Once
	return func(why error) {
		once.Do(func() {
			r.why = why
			close(r.ended)
		})
	}
}

// close notes that a replica is not heard any more, unless it has another stream by now.
func (p *Peers) close(r *receiver) {
	p.mu.Lock()
	current := p.heard[r.heard.hello.GetReplica()] == r.heard
	if current {
		r.heard.lost = p.o.Now()
	}
	var ids []mesh.ID
	for id := range r.heard.proxies {
		ids = append(ids, id)
	}
	p.mu.Unlock()
	if !current {
		return
	}
	p.local.HeardReplica()
	for _, id := range ids {
		p.local.Heard(id)
	}
}

// receive reads messages until the stream ends.
func (r *receiver) receive(stream peerv1.PeerService_ReportServer) error {
	failed := make(chan error, 1)
	go func() { // until the stream ends, which it does when receive returns
		pace := rate.NewLimiter(messageRate, messageBurst)
		for {
			err := pace.Wait(stream.Context())
			var m *peerv1.ReportMessage
			if err == nil {
				m, err = stream.Recv()
			}
			if err == nil {
				err = r.take(m)
			}
			if err != nil {
				failed <- err
				return
			}
		}
	}()
	for {
		select {
		case err := <-failed:
			return err
		case <-r.ended:
			return r.why
		case <-r.heard.answer:
			for _, t := range r.takeAnswers() {
				if err := stream.Send(&peerv1.ReportReply{Message: &peerv1.ReportReply_Taken{Taken: t}}); err != nil {
					return err
				}
			}
		}
	}
}

// take takes a message over.
func (r *receiver) take(m *peerv1.ReportMessage) error {
	if err := checkMessage(m); err != nil {
		err = r.peers.refuse(r.heard.hello.GetReplica(), err)
		if m.GetProxy() != nil {
			return nil // what is said of one proxy must not keep back what is said of the others
		}
		return err
	}
	if f := m.GetFreeze(); f != nil && r.peers.freeze != nil {
		if err := r.peers.freeze.Hear(f); err != nil {
			_ = r.peers.refuse(r.heard.hello.GetReplica(), err) // what it says of proxies counts nevertheless
		}
		return nil
	}
	ids, replica, err := r.change(m)
	for _, id := range ids {
		r.peers.local.Heard(id)
	}
	if p := m.GetProxy(); p.GetAwaited() && err == nil {
		r.peers.mu.Lock()
		r.heard.await(p)
		r.peers.mu.Unlock()
		r.peers.local.Merged(p.GetId())
	}
	if replica {
		r.peers.local.HeardReplica()
	}
	return err
}

// change keeps a message, and returns of which proxies something else is known now, and whether of the replica itself.
func (r *receiver) change(m *peerv1.ReportMessage) (ids []mesh.ID, replica bool, err error) {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	h := r.heard
	if r.peers.heard[h.hello.GetReplica()] != h {
		return nil, false, errReplaced
	}
	switch m := m.GetMessage().(type) {
	case *peerv1.ReportMessage_Proxy:
		return []mesh.ID{m.Proxy.GetId()}, false, h.set(m.Proxy, r.peers.o.Now())
	case *peerv1.ReportMessage_Forgotten:
		delete(h.proxies, m.Forgotten)
		delete(h.answers, m.Forgotten)
		delete(h.stale, m.Forgotten)
		return []mesh.ID{m.Forgotten}, false, nil
	case *peerv1.ReportMessage_SnapshotEnd:
		return h.endSnapshot(), true, nil
	case *peerv1.ReportMessage_Replica:
		h.replica = m.Replica
		return nil, true, nil
	case *peerv1.ReportMessage_Revision:
		changed := h.revision.GetStale() != m.Revision.GetStale() // who waits for this replica waits no more
		h.revision = m.Revision
		return nil, changed, nil
	case *peerv1.ReportMessage_Hello:
		return nil, false, status.Error(codes.InvalidArgument, "hello: a stream has one")
	}
	return nil, false, nil // of a later release
}

// takeAnswers returns what the other replica waits for, and is done.
func (r *receiver) takeAnswers() []*peerv1.Taken {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	done := r.heard.done
	r.heard.done = nil
	return done
}

// checkHello checks a Hello of a caller whose certificate has that name.
func checkHello(h *peerv1.Hello, name string) error {
	var errs []error
	refuse := func(field string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("hello.%s: %v: %s", field, value, allowed))
	}
	if h == nil {
		return status.Error(codes.InvalidArgument, "hello: must be the first message")
	}
	if h.GetReplica() != name {
		return status.Errorf(codes.PermissionDenied, "hello.replica: %q: the certificate is for replica %q", h.GetReplica(), name)
	}
	if n := len(h.GetProcess()); n == 0 || n > facts.MaxText {
		refuse("process", n, fmt.Sprintf("must have from 1 to %d characters", facts.MaxText))
	}
	if !h.GetStarted().IsValid() {
		refuse("started", h.GetStarted(), "must be a time")
	}
	if n := len(h.GetVersion()); n > facts.MaxText {
		refuse("version", n, fmt.Sprintf("must have at most %d characters", facts.MaxText))
	}
	if err := errors.Join(errs...); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}
