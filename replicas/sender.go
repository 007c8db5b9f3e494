package replicas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// A broken connection is noticed after the sum of the two.
	pingInterval = 10 * time.Second
	pingTimeout  = 5 * time.Second
	// retryPause between two streams to a replica.
	retryPause = 500 * time.Millisecond
	// sendTimeout is how long a replica may read nothing.
	sendTimeout = 15 * time.Second
	// takenTimeout is how long to wait for a connected replica. After that, it is not waited for, like a disconnected
	// one.
	takenTimeout = 10 * time.Second
)

// sender reports this replica's state to one replica. If a proxy changes faster than the replica reads, only the last
// state is sent.
type sender struct {
	name, address string
	wake          run.Signal
	ended         chan struct{}
	end           func()

	// Guarded by Peers.mu:
	connection *grpc.ClientConn // nil before the first
	connected  bool
	err        error // of the last stream; nil while one is open, and before the first
	// dirty are the proxies to send, and since when.
	dirty map[mesh.ID]time.Time
	// owed are the reports that were sent, but for which Taken has not arrived.
	owed         map[mesh.ID]owed
	replicaDirty bool
	// freezeDirty and revisionDirty mean that the verdict (freeze.go) and the revision (stale.go) are to be sent.
	freezeDirty, revisionDirty bool
}

type owed struct {
	version uint64
	since   time.Time
}

func newSender(name, address string) *sender {
	s := &sender{name: name, address: address, wake: run.NewSignal(), ended: make(chan struct{}),
		dirty: map[mesh.ID]time.Time{}, owed: map[mesh.ID]owed{}}
	s.end = sync.OnceFunc(func() { close(s.ended) })
	return s
}

// ctx returns a context that also ends with the sender.
func (s *sender) ctx(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		select {
		case <-ctx.Done():
		case <-s.ended:
		}
	}()
	return ctx
}

// change marks a proxy to be sent. The caller holds Peers.mu.
func (s *sender) change(id mesh.ID, now time.Time) {
	if s.dirty[id].IsZero() {
		s.dirty[id] = now
	}
}

// behind reports whether a report on a proxy is pending. The caller holds Peers.mu.
func (s *sender) behind(id mesh.ID, now time.Time) bool {
	recent := func(since time.Time) bool { return !since.IsZero() && now.Sub(since) < takenTimeout }
	return s.connected && (recent(s.dirty[id]) || recent(s.owed[id].since))
}

// tell keeps a stream to a replica open until ctx ends.
func (p *Peers) tell(ctx context.Context, s *sender) {
	connection, err := p.dial(s.address)
	if err != nil {
		p.failed(ctx, s, err)
		return
	}
	defer func() { _ = connection.Close() }()
	p.mu.Lock()
	s.connection = connection
	p.mu.Unlock()
	for {
		err := p.report(ctx, s, peerv1.NewPeerServiceClient(connection))
		if ctx.Err() != nil {
			return
		}
		p.failed(ctx, s, err)
		_ = run.Sleep(ctx, retryPause) // the loop checks ctx
	}
}

func (p *Peers) dial(address string) (*grpc.ClientConn, error) {
	connection, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(p.o.Client)), grpc.WithContextDialer(p.o.Dial),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReceived)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingInterval, Timeout: pingTimeout,
			PermitWithoutStream: true}),
		grpc.WithIdleTimeout(0), grpc.WithNoProxy(),
	)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return connection, nil
}

// failed records the end of a stream, and logs it once.
func (p *Peers) failed(ctx context.Context, s *sender, err error) {
	p.mu.Lock()
	known := s.err != nil
	s.connected, s.err = false, err
	clear(s.owed)
	p.mu.Unlock()
	if !known {
		p.o.Logger.WarnContext(ctx, "failed to reach replica, retrying", "replica", s.name, "address", s.address, "err", err)
		p.local.HeardReplica()
	}
}

// report sends a snapshot and then changes, until the stream ends.
func (p *Peers) report(ctx context.Context, s *sender, client peerv1.PeerServiceClient) error {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := client.Report(ctx)
	if err != nil {
		cancel()
		return err //nolint:wrapcheck // gRPC's error is complete
	}
	replies := make(chan error, 1)
	go func() { replies <- p.readReplies(stream, s) }()
	finish := func() error { // the reader has ended when report returns
		cancel()
		return <-replies
	}
	send := func(messages []*peerv1.ReportMessage) error {
		for _, m := range messages {
			late := time.AfterFunc(sendTimeout, cancel)
			err := stream.Send(m)
			if !late.Stop() {
				err = errors.Join(err, errNotRead)
			}
			if err != nil {
				return streamError(err, finish)
			}
		}
		return nil
	}
	if err := send([]*peerv1.ReportMessage{{Message: &peerv1.ReportMessage_Hello{Hello: p.hello}}}); err != nil {
		return err
	}
	p.beginSnapshot(ctx, s)
	end := []*peerv1.ReportMessage{{Message: &peerv1.ReportMessage_SnapshotEnd{SnapshotEnd: &peerv1.SnapshotEnd{}}}}
	for {
		if err := send(append(p.next(s), end...)); err != nil {
			return err
		}
		end = nil
		select {
		case <-s.wake:
		case err := <-replies:
			cancel()
			return err
		case <-ctx.Done():
			return errors.Join(ctx.Err(), finish())
		}
	}
}

var errNotRead = fmt.Errorf("it has read nothing for %s", sendTimeout)

// streamError returns why a stream ended. Send returns only io.EOF then; the reason comes with the replies.
func streamError(err error, finish func() error) error {
	if why := finish(); errors.Is(err, io.EOF) && why != nil {
		return why
	}
	return err
}

// beginSnapshot marks everything to be sent.
func (p *Peers) beginSnapshot(ctx context.Context, s *sender) {
	all := p.local.Proxies()
	p.mu.Lock()
	for _, id := range all {
		s.change(id, p.o.Now())
	}
	clear(s.owed)
	known := s.err != nil
	s.replicaDirty, s.freezeDirty, s.revisionDirty, s.connected, s.err = true, true, p.revisions != nil, true, nil
	p.mu.Unlock()
	if known {
		p.o.Logger.InfoContext(ctx, "connected to replica", "replica", s.name, "address", s.address)
	}
}

// next takes the messages to send now.
func (p *Peers) next(s *sender) []*peerv1.ReportMessage {
	p.mu.Lock()
	// what is read from here on includes all changes so far
	dirty, version, replica, freeze := s.dirty, p.changes+1, s.replicaDirty, s.freezeDirty
	var messages []*peerv1.ReportMessage
	if s.revisionDirty {
		s.revisionDirty = false
		messages = append(messages, p.revisionMessage())
	}
	s.dirty, s.replicaDirty, s.freezeDirty = map[mesh.ID]time.Time{}, false, false
	for id, since := range dirty {
		s.owed[id] = owed{version, since} // until the other replica counts as not answering
	}
	p.mu.Unlock()
	if freeze {
		messages = append(messages, p.freezeMessages()...)
	}
	if replica {
		messages = append(messages, &peerv1.ReportMessage{Message: &peerv1.ReportMessage_Replica{Replica: p.local.Replica()}})
	}
	for id := range dirty {
		m := p.local.Proxy(id)
		if !m.GetAwaited() {
			p.taken(s, id, version)
		}
		if m == nil {
			messages = append(messages, &peerv1.ReportMessage{Message: &peerv1.ReportMessage_Forgotten{Forgotten: id}})
			continue
		}
		m.Version = version
		messages = append(messages, &peerv1.ReportMessage{Message: &peerv1.ReportMessage_Proxy{Proxy: m}})
	}
	return messages
}

func (p *Peers) readReplies(stream peerv1.PeerService_ReportClient, s *sender) error {
	for {
		reply, err := stream.Recv()
		if err != nil {
			return err //nolint:wrapcheck // gRPC's error is complete
		}
		if t := reply.GetTaken(); t != nil {
			p.taken(s, t.GetProxy(), t.GetVersion())
			p.local.Heard(t.GetProxy())
		}
	}
}

// taken records that the Envoys of a replica have received the reports about a proxy up to a version.
func (p *Peers) taken(s *sender, id mesh.ID, version uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.owed[id].version <= version {
		delete(s.owed, id)
	}
}
