package freeze

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// UnknownZoneError is that no node with pods of the mesh is in a zone.
type UnknownZoneError struct {
	Zone string
	// Known are those with such nodes, sorted.
	Known []string
}

// Error implements error.
func (e *UnknownZoneError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("zone: %.100q: no node with pods of the mesh has the label topology.kubernetes.io/zone", e.Zone)
	}
	return fmt.Sprintf("zone: %.100q: must be one with nodes that have pods of the mesh: %s", e.Zone, strings.Join(e.Known, ", "))
}

// Order has the leader freeze or thaw a zone, and returns what the zone is then; Kept is 0 if it is not frozen and does not thaw. What is frozen so stays it
// until it is thawed. What is thawed is not frozen again by the same loss.
func (f *Freeze) Order(zone string, frozen bool) (Zone, Mode, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.leader
	switch {
	case l == nil || f.verdict.Epoch > l.epoch:
		return Zone{}, f.mode, ErrNotLeading
	case f.mode == Off:
		return Zone{}, f.mode, ErrOff
	}
	before := f.verdict
	_, known := before.zone(zone)
	if zone == "" || !known && !slices.Contains(l.zones, zone) {
		known := slices.DeleteFunc(slices.Clone(l.zones), func(z string) bool { return z == "" })
		slices.Sort(known)
		return Zone{}, f.mode, &UnknownZoneError{zone, known}
	}
	f.publishOrder(l, Order{Zone: zone, Frozen: frozen, Since: time.Now()})
	f.signal()
	z, is := f.verdict.zone(zone)
	if !is {
		z = Zone{Name: zone}
	}
	return z, f.mode, nil
}

// publishOrder makes an order one that holds. A zone that is frozen is so at once; one that is thawed begins to thaw. mu is held.
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
	// An order to thaw holds as long as the mesh is lost, and judges that, which one of a zone that is well must not.
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
		v.Lost = slices.DeleteFunc(slices.Clone(before.Lost), func(loss Loss) bool { return loss.Zone == "" || loss.Zone == o.Zone })
	}
	l.publish(v)
}

// concerns reports whether the silence of nodes or proxies has frozen a zone, or it is lost.
func (v *Verdict) concerns(zone string) bool {
	z, is := v.zone(zone)
	return is && z.By == Nodes || slices.ContainsFunc(v.Lost, func(l Loss) bool { return l.Zone == zone })
}
