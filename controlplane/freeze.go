package controlplane

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/controller"
	"github.com/sonde-mesh/sonde/controller/freeze"
	"github.com/sonde-mesh/sonde/partition"
	"github.com/sonde-mesh/sonde/peers"
)

// sight is what all replicas know of proxies. It is asked once the control plane has its agents.
func (c *cluster) sight() controller.Sight {
	cp := c.cp
	return controller.Sight{
		Connected: func(id mesh.ID) bool { return cp.agents.Connected(id) },
		LastSeen:  func(id mesh.ID) (time.Time, bool) { return cp.agents.LastSeen(id) },
		Lacking:   cp.peers.Missing, Tell: cp.peers.ChangedFreeze,
		Streams: func(ctx context.Context) (map[mesh.ID]bool, bool) {
			all, missing := cp.peers.Streaming(ctx)
			for _, s := range cp.pipeline.XDS.Status() {
				all[s.Node] = true
			}
			return all, len(missing) == 0
		},
	}
}

// TellFreeze returns what tells the other replicas of the verdict.
func TellFreeze(f *freeze.Freeze) peers.Freeze { return tellFreeze{f} }

// tellFreeze tells the other replicas of the verdict.
type tellFreeze struct{ freeze *freeze.Freeze }

var _ peers.Freeze = tellFreeze{}

// Tell implements peers.Freeze.
func (t tellFreeze) Tell() *peerv1.Freeze {
	v := t.freeze.Verdict()
	if v.Epoch == 0 {
		return nil
	}
	m := &peerv1.Freeze{Epoch: v.Epoch, Count: v.Count}
	for _, l := range v.Lost {
		m.Lost = append(m.Lost, &peerv1.FreezeLoss{Kind: string(l.Kind), Zone: l.Zone, Cause: string(l.Cause), Since: timestamppb.New(l.Since)})
	}
	for _, z := range v.Zones {
		m.Zones = append(m.Zones, &peerv1.FreezeZone{Name: z.Name, By: string(z.By), Since: timestamppb.New(z.Since), Kept: uint32(z.Kept)})
	}
	for _, o := range v.Orders {
		m.Orders = append(m.Orders, &peerv1.FreezeOrder{Zone: o.Zone, Frozen: o.Frozen, Since: timestamppb.New(o.Since)})
	}
	return m
}

// Hear implements peers.Freeze.
func (t tellFreeze) Hear(m *peerv1.Freeze) error {
	v := verdictOf(m)
	if err := v.Validate(); err != nil {
		return status.Error(codes.InvalidArgument, "freeze."+err.Error())
	}
	t.freeze.Hear(v)
	return nil
}

func verdictOf(m *peerv1.Freeze) *freeze.Verdict {
	v := &freeze.Verdict{Epoch: m.GetEpoch(), Count: m.GetCount()}
	for _, l := range m.GetLost() {
		v.Lost = append(v.Lost, freeze.Loss{Kind: freeze.Kind(l.GetKind()), Zone: l.GetZone(), Cause: partition.Cause(l.GetCause()), Since: l.GetSince().AsTime()})
	}
	for _, z := range m.GetZones() {
		v.Zones = append(v.Zones, freeze.Zone{Name: z.GetName(), By: freeze.Kind(z.GetBy()), Since: z.GetSince().AsTime(), Kept: int(z.GetKept())})
	}
	for _, o := range m.GetOrders() {
		v.Orders = append(v.Orders, freeze.Order{Zone: o.GetZone(), Frozen: o.GetFrozen(), Since: o.GetSince().AsTime()})
	}
	return v
}

// Order implements peers.Freeze.
func (t tellFreeze) Order(r *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error) {
	zone, mode, err := t.freeze.Order(r.GetZone(), !r.GetThaw())
	unknown, isUnknown := errors.AsType[*freeze.UnknownZoneError](err)
	switch {
	case errors.Is(err, freeze.ErrNotLeading):
		return nil, nil //nolint:nilnil // another one may
	case errors.Is(err, freeze.ErrOff):
		return nil, status.Error(codes.FailedPrecondition, "freeze.mode is off: nothing is frozen, set it to enforce or dryRun")
	case isUnknown:
		return nil, status.Error(codes.NotFound, err.Error()+mesh.DidYouMean(unknown.Zone, unknown.Known))
	case err != nil:
		return nil, status.Error(codes.Internal, err.Error())
	}
	done := &adminv1.FreezeZoneResponse{KeptPercent: uint32(zone.Kept * 100 / freeze.All), DryRun: mode == freeze.DryRun}
	if zone.Kept > 0 {
		done.Since = timestamppb.New(zone.Since)
	}
	return done, nil
}

// orderFreeze has the replica that leads freeze or thaw a zone. Errors are gRPC statuses.
func (c *cluster) orderFreeze(ctx context.Context, r *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error) {
	if done, err := TellFreeze(c.controller.Freeze).Order(r); done != nil || err != nil {
		return done, err
	}
	done, missing, err := c.cp.peers.OrderFreeze(ctx, r)
	switch {
	case done != nil || err != nil:
		return done, err //nolint:wrapcheck // it is a status
	case len(missing) > 0:
		return nil, status.Error(codes.Unavailable, "no replica that has answered leads, and these have not: "+strings.Join(missing, ", "))
	}
	return nil, status.Error(codes.Unavailable, "no replica leads now: try again")
}
