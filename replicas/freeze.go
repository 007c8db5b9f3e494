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

// Freeze has the verdict about the sight of the mesh. Unlike all else, a replica also tells it that it was told: the one that has judged may be gone.
// Its methods are called from any goroutine.
type Freeze interface {
	// Tell returns the newest verdict that is known, nil if there is none.
	Tell() *peerv1.Freeze
	// Hear gets one of another replica. It must not call those of Peers, but for ChangedFreeze. The error is a gRPC status.
	Hear(m *peerv1.Freeze) error
	// Order freezes or thaws a zone. It returns nil if this replica does not lead. Errors are gRPC statuses.
	Order(r *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error)
}

// ConnectFreeze sets who has the verdict. It has to be called before Run and Serve.
func (p *Peers) ConnectFreeze(f Freeze) {
	if p != nil {
		p.freeze = f
	}
}

// ChangedFreeze tells that another verdict is known. It returns at once.
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

// freezeMessages returns what is to be told of the verdict.
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

// orderTimeout is how long the replica that leads may take: it changes what it has in memory.
const orderTimeout = 3 * time.Second

// OrderFreeze has the other replica that leads freeze or thaw a zone. It returns nil if none of those that have answered does, and the names of
// those that have not. The error is that of the one that leads.
func (p *Peers) OrderFreeze(ctx context.Context, r *adminv1.FreezeZoneRequest) (done *adminv1.FreezeZoneResponse, missing []string, err error) {
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
			return answer{}, err //nolint:wrapcheck // it only says that it has not answered
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
	return &peerv1.OrderFreezeResponse{Done: done}, err //nolint:wrapcheck // it is a status
}

// Streaming returns the proxies that have an ADS stream with another replica, and the names of the replicas that have not answered, sorted.
func (p *Peers) Streaming(ctx context.Context) (proxies map[mesh.ID]bool, missing []string) {
	proxies = map[mesh.ID]bool{}
	parts, missing := askLists(ctx, p, peerv1.PeerServiceClient.ListStreams, &peerv1.ListStreamsRequest{ProxiesOnly: true})
	for _, part := range parts {
		proxies[part.GetProxy()] = true
	}
	return proxies, missing
}

// maxFreeze limits each part of a verdict.
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
