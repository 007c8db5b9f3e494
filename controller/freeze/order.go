package freeze

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Order freezes or thaws a zone at the leader. A zone that it freezes stays frozen until an operator thaws it; a zone
// that it thaws is not frozen again by the same loss. Order returns nil at other replicas. Its errors are gRPC
// statuses.
func (f *Freeze) Order(r *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l, zone := f.leader, r.GetZone()
	switch {
	case l == nil || f.verdict.Epoch > l.epoch:
		return nil, nil //nolint:nilnil // another replica may lead
	case f.mode == Off:
		return nil, status.Error(codes.FailedPrecondition,
			"freeze.mode is off: nothing is frozen, set it to enforce or dryRun")
	}
	if _, known := f.verdict.zone(zone); zone == "" || !known && !slices.Contains(l.zones, zone) {
		return nil, unknownZone(zone, l.zones)
	}
	f.publishOrder(l, Order{Zone: zone, Frozen: !r.GetThaw(), Since: time.Now()})
	f.wake.Set()
	done := &adminv1.FreezeZoneResponse{DryRun: f.mode == DryRun}
	if z, is := f.verdict.zone(zone); is {
		done.KeptPercent, done.Since = uint32(z.Kept*100/All), timestamppb.New(z.Since)
	}
	return done, nil
}

// unknownZone returns the error for a zone that has no nodes with pods of the mesh.
func unknownZone(zone string, zones []string) error {
	known := slices.DeleteFunc(slices.Clone(zones), func(z string) bool { return z == "" })
	slices.Sort(known)
	if len(known) == 0 {
		return status.Errorf(codes.NotFound,
			"zone: %.100q: no node with pods of the mesh has the label topology.kubernetes.io/zone", zone)
	}
	return status.Errorf(codes.NotFound, "zone: %.100q: must be one with nodes that have pods of the mesh: %s%s",
		zone, strings.Join(known, ", "), mesh.DidYouMean(zone, known))
}

// publishOrder puts an order into the verdict. A frozen zone takes effect at once, a thawed zone begins to thaw. The
// caller holds mu.
func (f *Freeze) publishOrder(l *leading, o Order) {
	before := f.verdict
	others := slices.DeleteFunc(slices.Clone(before.Orders), func(other Order) bool { return other.Zone == o.Zone })
	v := &Verdict{Lost: before.Lost, Zones: slices.Clone(before.Zones), Orders: others}
	at := slices.IndexFunc(v.Zones, func(z Zone) bool { return z.Name == o.Zone })
	old, ordered := before.order(o.Zone)
	ordered = ordered && old.Frozen == o.Frozen
	if ordered {
		o = old
	}
	// An order to thaw stays in effect while the mesh is lost. An order for a healthy zone must not affect the loss of
	// the mesh.
	judges := !o.Frozen && before.concerns(o.Zone)
	if o.Frozen || ordered || judges {
		v.Orders = append(v.Orders, o)
		slices.SortFunc(v.Orders, func(a, b Order) int { return strings.Compare(a.Zone, b.Zone) })
	}
	switch {
	case o.Frozen && at < 0:
		v.Zones = append(v.Zones, Zone{Name: o.Zone, By: Operator, Since: o.Since, Kept: All})
		slices.SortFunc(v.Zones, func(a, b Zone) int { return strings.Compare(a.Name, b.Name) })
	case o.Frozen:
		v.Zones[at].By, v.Zones[at].Kept = Operator, All
	case at >= 0 && v.Zones[at].Kept == All:
		v.Zones[at].Kept = All - 1
		l.judge.stepped = o.Since
	}
	if judges {
		v.Lost = slices.DeleteFunc(slices.Clone(before.Lost), func(loss Loss) bool {
			return loss.Zone == "" || loss.Zone == o.Zone
		})
	}
	l.publish(v)
}

// concerns reports whether a zone is lost, or frozen by the silence of nodes or proxies.
func (v *Verdict) concerns(zone string) bool {
	z, is := v.zone(zone)
	return is && z.By == Nodes || slices.ContainsFunc(v.Lost, func(l Loss) bool { return l.Zone == zone })
}
