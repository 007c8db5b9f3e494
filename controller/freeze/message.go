package freeze

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/partition"
)

// Tell returns the verdict as the message for other replicas, or nil.
func (f *Freeze) Tell() *peerv1.Freeze {
	v := f.Verdict()
	if v.Epoch == 0 {
		return nil
	}
	m := &peerv1.Freeze{Epoch: v.Epoch, Count: v.Count}
	for _, l := range v.Lost {
		m.Lost = append(m.Lost, &peerv1.FreezeLoss{
			Kind: string(l.Kind), Zone: l.Zone, Cause: string(l.Cause), Since: timestamppb.New(l.Since),
		})
	}
	for _, z := range v.Zones {
		m.Zones = append(m.Zones, &peerv1.FreezeZone{
			Name: z.Name, By: string(z.By), Since: timestamppb.New(z.Since), Kept: uint32(z.Kept),
		})
	}
	for _, o := range v.Orders {
		m.Orders = append(m.Orders, &peerv1.FreezeOrder{Zone: o.Zone, Frozen: o.Frozen, Since: timestamppb.New(o.Since)})
	}
	return m
}

// Hear takes over another replica's verdict, unless the current one is newer. The error is a gRPC status.
func (f *Freeze) Hear(m *peerv1.Freeze) error {
	v := verdictOf(m)
	if err := v.Validate(); err != nil {
		return status.Error(codes.InvalidArgument, "freeze."+err.Error())
	}
	f.hear(v)
	return nil
}

func (f *Freeze) hear(v *Verdict) {
	if f.take(v) {
		f.o.Logger.Info("freeze verdict received",
			"epoch", v.Epoch, "count", v.Count, "lost", len(v.Lost), "zones", len(v.Zones))
		f.o.Tell() // others may be disconnected from its sender
	}
}

func verdictOf(m *peerv1.Freeze) *Verdict {
	v := &Verdict{Epoch: m.GetEpoch(), Count: m.GetCount()}
	for _, l := range m.GetLost() {
		v.Lost = append(v.Lost, Loss{
			Kind: Kind(l.GetKind()), Zone: l.GetZone(), Cause: partition.Cause(l.GetCause()), Since: l.GetSince().AsTime(),
		})
	}
	for _, z := range m.GetZones() {
		v.Zones = append(v.Zones, Zone{
			Name: z.GetName(), By: Kind(z.GetBy()), Since: z.GetSince().AsTime(), Kept: int(z.GetKept()),
		})
	}
	for _, o := range m.GetOrders() {
		v.Orders = append(v.Orders, Order{Zone: o.GetZone(), Frozen: o.GetFrozen(), Since: o.GetSince().AsTime()})
	}
	return v
}
