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
	// helloTimeout bounds the wait for the first message of a stream.
	helloTimeout = 5 * time.Second
	// messageRate, per second, is more than a replica with 10,000 reconnecting sessions sends. Beyond it, messages are
	// read more slowly.
	messageRate  = 10_000
	messageBurst = maxProxies
)

// receiver is a stream of reports from another replica.
type receiver struct {
	peers  *Peers
	remote *remote
	ended  chan struct{}
	why    error // set before ended is closed
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
	p.o.Logger.InfoContext(stream.Context(), "peer connected", "replica", hello.GetReplica(),
		"version", hello.GetVersion())
	err = r.receive(stream)
	p.o.Logger.WarnContext(stream.Context(), "peer disconnected, keeping its last reported state",
		"replica", hello.GetReplica(), "err", err)
	return err
}

// refuse counts and logs a rejected peer.
func (p *Peers) refuse(peer string, err error) error {
	p.metrics.refused.Inc()
	p.o.Logger.Warn("rejected peer", "peer", peer, "err", err)
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
	go func() { // at the latest until the stream ends
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

// open makes a stream the current one of its replica.
func (p *Peers) open(hello *peerv1.Hello) (*receiver, error) {
	name := hello.GetReplica()
	var forgotten []mesh.ID
	defer func() { // without holding mu
		for _, id := range forgotten {
			p.local.Heard(id)
		}
	}()
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.remotes[name]
	switch {
	case name == p.o.Name && hello.GetProcess() != p.hello.GetProcess():
		return nil, status.Errorf(codes.AlreadyExists,
			"replica: %q: is also the name of this replica: give each replica a name of its own", name)
	case name == p.o.Name:
		return nil, status.Error(codes.AlreadyExists, "replica: it has connected to itself")
	case old != nil && old.lost.IsZero() && old.hello.GetProcess() != hello.GetProcess() &&
		!hello.GetStarted().AsTime().After(old.hello.GetStarted().AsTime()):
		return nil, status.Errorf(codes.AlreadyExists,
			"replica: %q: another process with this name started later and is connected: give each replica a name of its own",
			name)
	case old == nil && len(p.remotes) >= maxReplicas:
		var dropped bool
		if forgotten, dropped = p.dropLost(); !dropped {
			return nil, status.Errorf(codes.ResourceExhausted, "%d replicas are connected, which is the limit", len(p.remotes))
		}
	}
	r := &receiver{peers: p, ended: make(chan struct{})}
	h := &remote{
		hello: hello, proxies: map[mesh.ID]facts.Said{}, stale: map[mesh.ID]struct{}{}, end: r.endOnce(),
		answers: map[mesh.ID]uint64{}, answer: run.NewSignal(),
	}
	if old != nil {
		old.end(errReplaced)
		// The last reported state stays in effect until the new snapshot replaces it.
		h.proxies = old.proxies
		if old.hello.GetProcess() == hello.GetProcess() {
			h.replica, h.revision, h.complete = old.replica, old.revision, old.complete
		}
		for id := range h.proxies {
			h.stale[id] = struct{}{}
		}
	}
	r.remote, p.remotes[name] = h, h
	return r, nil
}

// dropLost drops the replica that disconnected first, and returns the proxies that it had reported. It returns false if
// no replica is disconnected. The caller holds mu.
func (p *Peers) dropLost() (proxies []mesh.ID, dropped bool) {
	var first string
	for name, h := range p.remotes {
		if !h.lost.IsZero() && (first == "" || h.lost.Before(p.remotes[first].lost)) {
			first = name
		}
	}
	if first == "" {
		return nil, false
	}
	proxies = slices.Collect(maps.Keys(p.remotes[first].proxies))
	delete(p.remotes, first)
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

// close marks a replica as disconnected, unless it has a newer stream.
func (p *Peers) close(r *receiver) {
	p.mu.Lock()
	current := p.remotes[r.remote.hello.GetReplica()] == r.remote
	if current {
		r.remote.lost = p.o.Now()
	}
	var ids []mesh.ID
	for id := range r.remote.proxies {
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
	go func() { // it stops when receive returns, which ends the stream
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
		case <-r.remote.answer:
			for _, t := range r.takeAnswers() {
				if err := stream.Send(&peerv1.ReportReply{Message: &peerv1.ReportReply_Taken{Taken: t}}); err != nil {
					return err
				}
			}
		}
	}
}

// take handles a message.
func (r *receiver) take(m *peerv1.ReportMessage) error {
	if err := checkMessage(m); err != nil {
		err = r.peers.refuse(r.remote.hello.GetReplica(), err)
		if m.GetProxy() != nil {
			return nil // an invalid report about one proxy must not stop the others
		}
		return err
	}
	if f := m.GetFreeze(); f != nil && r.peers.freeze != nil {
		if err := r.peers.freeze.Hear(f); err != nil {
			_ = r.peers.refuse(r.remote.hello.GetReplica(), err) // the replica's reports about proxies are still used
		}
		return nil
	}
	ids, replica, err := r.change(m)
	for _, id := range ids {
		r.peers.local.Heard(id)
	}
	if p := m.GetProxy(); p.GetAwaited() && err == nil {
		r.peers.mu.Lock()
		r.remote.await(p)
		r.peers.mu.Unlock()
		r.peers.local.Merged(p.GetId())
	}
	if replica {
		r.peers.local.HeardReplica()
	}
	return err
}

// change stores a message. It returns the proxies whose state changed, and whether the replica's own state did.
func (r *receiver) change(m *peerv1.ReportMessage) (ids []mesh.ID, replica bool, err error) {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	h := r.remote
	if r.peers.remotes[h.hello.GetReplica()] != h {
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
		changed := h.revision.GetStale() != m.Revision.GetStale() // others no longer wait for a stale replica
		h.revision = m.Revision
		return nil, changed, nil
	case *peerv1.ReportMessage_Hello:
		return nil, false, status.Error(codes.InvalidArgument, "hello: a stream must have only one")
	}
	return nil, false, nil // the message is from a later release
}

// takeAnswers returns the pending acknowledgements (Taken) for the other replica.
func (r *receiver) takeAnswers() []*peerv1.Taken {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	done := r.remote.done
	r.remote.done = nil
	return done
}

// checkHello validates the Hello of a caller with the given name in its certificate.
func checkHello(h *peerv1.Hello, name string) error {
	var errs []error
	refuse := func(field string, value any, allowed string) {
		errs = append(errs, fmt.Errorf("hello.%s: %v: %s", field, value, allowed))
	}
	if h == nil {
		return status.Error(codes.InvalidArgument, "hello: must be the first message")
	}
	if h.GetReplica() != name {
		return status.Errorf(codes.PermissionDenied, "hello.replica: %q: the certificate is for replica %q",
			h.GetReplica(), name)
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
