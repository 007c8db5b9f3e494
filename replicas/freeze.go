package replicas

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
)

// Freeze holds the verdict about unreachable nodes and proxies. Unlike other state, a replica also passes on a verdict
// that it received, since the replica that judged may be gone. Its methods are called from any goroutine.
type Freeze interface {
	// Tell returns the newest known verdict, nil without one.
	Tell() *peerv1.Freeze
	// Hear receives a verdict from another replica. It must not call Peers, except ChangedFreeze. The error is a gRPC
	// status.
	Hear(m *peerv1.Freeze) error
	// Order freezes or thaws a zone. It returns nil if this replica does not lead. Errors are gRPC statuses.
	Order(r *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error)
}

// ConnectFreeze sets the source of the verdict. Call it before Run and Serve.
func (p *Peers) ConnectFreeze(f Freeze) {
	if p != nil {
		p.freeze = f
	}
}

// ChangedFreeze announces a new verdict. It returns at once.
func (p *Peers) ChangedFreeze() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.senders {
		s.freezeDirty = true
		s.wake.Set()
	}
}

// freezeMessages returns the messages with the verdict.
func (p *Peers) freezeMessages() []*peerv1.ReportMessage {
	if p.freeze == nil {
		return nil
	}
	m := p.freeze.Tell()
	if m == nil {
		return nil
	}
	return []*peerv1.ReportMessage{{Message: &peerv1.ReportMessage_Freeze{Freeze: m}}}
}

// orderTimeout bounds the leader's response: it only changes memory.
const orderTimeout = 3 * time.Second

// OrderFreeze forwards a freeze or thaw of a zone to the leading replica. It returns nil if no replica that answered
// leads, and the names of those that did not answer. The error is the leader's.
func (p *Peers) OrderFreeze(ctx context.Context, r *adminv1.FreezeZoneRequest) (done *adminv1.FreezeZoneResponse,
	missing []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	type answer struct {
		done *adminv1.FreezeZoneResponse
		err  error
	}
	answers, missing := askAll(ctx, p, func(ctx context.Context, replica string) (answer, error) {
		client, err := p.client(replica)
		if err != nil {
			return answer{}, err
		}
		response, err := client.OrderFreeze(ctx, r)
		switch status.Code(err) {
		case codes.OK:
			return answer{done: response.GetDone()}, nil
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unimplemented:
			return answer{}, err //nolint:wrapcheck // used only as "did not answer"
		}
		return answer{err: err}, nil
	})
	for _, a := range answers {
		if a.done != nil || a.err != nil {
			return a.done, missing, a.err
		}
	}
	return nil, missing, nil
}

// OrderFreeze implements peerv1.PeerServiceServer.
func (s *service) OrderFreeze(_ context.Context, r *adminv1.FreezeZoneRequest) (*peerv1.OrderFreezeResponse, error) {
	if s.peers.freeze == nil {
		return &peerv1.OrderFreezeResponse{}, nil
	}
	done, err := s.peers.freeze.Order(r)
	return &peerv1.OrderFreezeResponse{Done: done}, err //nolint:wrapcheck // a gRPC status
}

// Streaming returns the proxies that have an ADS stream with another replica, and the names of the replicas that have
// not answered, sorted.
func (p *Peers) Streaming(ctx context.Context) (proxies map[mesh.ID]bool, missing []string) {
	proxies = map[mesh.ID]bool{}
	parts, missing := askLists(ctx, p, peerv1.PeerServiceClient.ListStreams, &peerv1.ListStreamsRequest{ProxiesOnly: true})
	for _, part := range parts {
		proxies[part.GetProxy()] = true
	}
	return proxies, missing
}

// maxFreeze limits each list in a verdict.
const maxFreeze = 1000

func checkFreeze(b *facts.Bounds, m *peerv1.Freeze) {
	if m.GetEpoch() < 0 || m.GetCount() < 0 {
		b.Refuse("freeze.epoch", fmt.Sprintf("%d, %d", m.GetEpoch(), m.GetCount()), "must not be negative")
	}
	b.Count("freeze.lost", len(m.GetLost()), maxFreeze)
	b.Count("freeze.zones", len(m.GetZones()), maxFreeze)
	b.Count("freeze.orders", len(m.GetOrders()), maxFreeze)
	for _, l := range m.GetLost() {
		b.Text("freeze.lost", l.GetKind(), l.GetZone(), l.GetCause())
		b.Time("freeze.lost.since", l.GetSince())
	}
	for _, z := range m.GetZones() {
		b.Text("freeze.zones", z.GetName(), z.GetBy())
		b.Time("freeze.zones.since", z.GetSince())
	}
	for _, o := range m.GetOrders() {
		b.Text("freeze.orders", o.GetZone())
		b.Time("freeze.orders.since", o.GetSince())
	}
}
