package freeze

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/partition"
)

const (
	// proxySilence is how long a proxy must have neither session nor ADS stream to count as silent. Agents retry within
	// 10 s, and an attempt takes up to 10 s, so a rollout of the control plane makes no proxy silent.
	proxySilence = 45 * time.Second
	// nodeSilence is short, because the node controller has already waited before it marks a node Unknown.
	nodeSilence = time.Second
	// thawStep is the time between two tenths of a zone's endpoints.
	thawStep = 3 * time.Second
)

func settings(silence time.Duration) partition.Settings {
	return partition.Settings{Silence: silence, Enter: partition.DefaultEnter,
		Leave: partition.LeaveFor(partition.DefaultEnter), Calm: partition.DefaultCalm}
}

// readings are the inputs of one judgement.
type readings struct {
	nodes partition.Reading
	// proxies is nil while the state of proxies is unknown.
	proxies *partition.Reading
}

// judge is the state on which a leader's verdicts depend. It has no clock.
type judge struct {
	nodes, proxies partition.State
	// stepped is the last time that a zone thawed by a step.
	stepped time.Time
}

// newJudge continues from the previous leader's verdict.
func newJudge(v *Verdict) *judge {
	lost := func(kind Kind) partition.State {
		groups := map[partition.Group]time.Time{}
		for _, o := range v.Orders {
			if !o.Frozen { // groups that an operator has thawed are not in Lost, but still latched
				groups[partition.Whole], groups[partition.Group{Zone: o.Zone}] = o.Since, o.Since
			}
		}
		for _, l := range v.Lost {
			if l.Kind == kind {
				groups[partition.Group{Zone: l.Zone}] = l.Since
			}
		}
		return partition.Restore(groups)
	}
	return &judge{nodes: lost(Nodes), proxies: lost(Proxies)}
}

// next returns the verdict after a reading, without changing before. The caller sets Epoch and Count.
func (j *judge) next(before *Verdict, r readings) *Verdict {
	j.nodes = partition.Judge(j.nodes, r.nodes, settings(nodeSilence))
	if r.proxies != nil {
		j.proxies = partition.Judge(j.proxies, *r.proxies, settings(proxySilence))
	}
	now, blind := r.nodes.At, r.nodes.Failed != ""
	frozen := j.frozen(before, r.nodes)
	v := &Verdict{}
	for _, o := range before.Orders {
		zone := partition.Group{Zone: o.Zone}
		switch {
		case o.Frozen:
			frozen[o.Zone] = Operator
		case blind, j.nodes[zone].Latched(), j.nodes[partition.Whole].Latched(), j.proxies[zone].Latched():
			delete(frozen, o.Zone)
		default:
			continue // the loss that an operator thawed is over
		}
		v.Orders = append(v.Orders, o)
	}
	v.Zones = j.zones(before, frozen, now, blind)
	v.Lost = append(losses(Nodes, before, j.nodes, v.Orders), losses(Proxies, before, j.proxies, v.Orders)...)
	return v
}

// frozen returns the zones that are frozen because of silent nodes.
func (j *judge) frozen(before *Verdict, nodes partition.Reading) map[string]Kind {
	frozen := map[string]Kind{}
	was := func(zone string) bool {
		z, is := before.zone(zone)
		return is && z.By == Nodes && z.Kept == All
	}
	if nodes.Failed != "" {
		for _, z := range before.Zones {
			if was(z.Name) {
				frozen[z.Name] = Nodes
			}
		}
		return frozen
	}
	// An order to thaw a zone also covers the loss of the whole mesh, which then freezes no further zone.
	judged := slices.ContainsFunc(before.Orders, func(o Order) bool { return !o.Frozen })
	silent := map[string]bool{}
	for _, m := range nodes.Members {
		silent[m.Zone] = silent[m.Zone] || nodes.At.Sub(m.Heard) >= nodeSilence
	}
	for zone, is := range silent {
		if j.freezes(zone, was(zone), is && !judged) {
			frozen[zone] = Nodes
		}
	}
	return frozen
}

// freezes reports whether a zone freezes: it is lost, or it has a silent node while the whole mesh is lost, even if
// half of its nodes are seen. A zone that was frozen by the loss of the mesh stays frozen as long as a zone that was
// lost alone.
func (j *judge) freezes(zone string, was, silent bool) bool {
	if j.nodes[partition.Whole].Latched() && (was || silent) {
		return true
	}
	s := j.nodes[partition.Group{Zone: zone}]
	stays := was && s.Members > 1 && float64(s.Silent) >= partition.LeaveFor(partition.DefaultEnter)*float64(s.Members)
	return zone != "" && (s.Latched() || stays)
}

// zones returns the frozen zones and the thawing ones. Only the first thawing zone advances by a step.
func (j *judge) zones(before *Verdict, frozen map[string]Kind, now time.Time, blind bool) []Zone {
	var all []Zone
	for _, name := range slices.Sorted(maps.Keys(frozen)) {
		z, was := before.zone(name)
		if !was || z.Kept != All {
			z = Zone{Name: name, Since: now, Kept: All}
		}
		z.By = frozen[name]
		all = append(all, z)
	}
	first := true
	for _, z := range before.Zones {
		if _, is := frozen[z.Name]; is {
			continue
		}
		if first && !blind && now.Sub(j.stepped) >= thawStep {
			j.stepped = now
			z.Kept--
		}
		first = false
		if z.Kept > 0 {
			all = append(all, z)
		}
	}
	slices.SortFunc(all, func(a, b Zone) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// losses returns the groups of a kind that count as lost. An order to thaw a zone excludes both the zone and the whole
// mesh.
func losses(kind Kind, before *Verdict, state partition.State, orders []Order) []Loss {
	var all []Loss
	for group, status := range state {
		thawed := slices.ContainsFunc(orders, func(o Order) bool {
			return !o.Frozen && (group == partition.Whole || o.Zone == group.Zone)
		})
		if !status.Latched() || thawed {
			continue
		}
		l := Loss{Kind: kind, Zone: group.Zone, Cause: status.Cause, Since: status.Since}
		i := slices.IndexFunc(before.Lost, func(b Loss) bool { return b.Kind == kind && b.Zone == group.Zone })
		if i >= 0 && status.Verdict != partition.Lost { // it cannot be judged now
			l.Cause = before.Lost[i].Cause
		}
		if i >= 0 {
			l.Since = before.Lost[i].Since
		}
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b Loss) int { return cmp.Compare(a.Zone, b.Zone) })
	return all
}
