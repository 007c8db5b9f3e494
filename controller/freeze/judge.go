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
	// proxySilence is how long a proxy must have neither session nor ADS stream: agents try again within 10 s, and a try takes up to 10 s, so that a
	// control plane that is rolled does not come to it.
	proxySilence = 45 * time.Second
	// nodeSilence of a node whose kubelet is not heard: the node controller has waited.
	nodeSilence = time.Second
	// thawStep is the time between two tenths of the endpoints of a zone.
	thawStep = 3 * time.Second
)

func settings(silence time.Duration) partition.Settings {
	return partition.Settings{Silence: silence, Enter: partition.DefaultEnter, Leave: partition.LeaveFor(partition.DefaultEnter), Calm: partition.DefaultCalm}
}

// readings are what is judged at once.
type readings struct {
	nodes partition.Reading
	// proxies is nil if nothing can be said of them.
	proxies *partition.Reading
}

// judge is the state of a leader. It has no clock.
type judge struct {
	nodes, proxies partition.State
	// stepped is when a zone has thawed a step last.
	stepped time.Time
}

// newJudge goes on with the verdict of the leader before.
func newJudge(v *Verdict) *judge {
	lost := func(kind Kind) partition.State {
		groups := map[partition.Group]time.Time{}
		for _, o := range v.Orders {
			if !o.Frozen { // what an operator has thawed is not in Lost, and not over
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

// next returns the verdict after a reading. before is not changed. Epoch and Count are left to the caller.
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
			continue // what it has thawed is over
		}
		v.Orders = append(v.Orders, o)
	}
	v.Zones = j.zones(before, frozen, now, blind)
	v.Lost = append(losses(Nodes, before, j.nodes, v.Orders), losses(Proxies, before, j.proxies, v.Orders)...)
	return v
}

// frozen returns the zones that the silence of nodes freezes.
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
	// An operator who thaws a zone has judged the loss of the whole: it freezes no further one.
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

// freezes reports whether a zone is lost, or has a silent node while the whole is: that half of a zone is heard says nothing of the other half then. One
// that was frozen so stays it as long as one that was lost by itself would.
func (j *judge) freezes(zone string, was, silent bool) bool {
	if j.nodes[partition.Whole].Latched() && (was || silent) {
		return true
	}
	s := j.nodes[partition.Group{Zone: zone}]
	stays := was && s.Members > 1 && float64(s.Silent) >= partition.LeaveFor(partition.DefaultEnter)*float64(s.Members)
	return zone != "" && (s.Latched() || stays)
}

// zones returns those that are frozen, and those that thaw, the first of which may thaw a step further.
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

// losses returns the groups of a kind that count as lost. An operator who thaws a zone has judged it, and the whole with it.
func losses(kind Kind, before *Verdict, state partition.State, orders []Order) []Loss {
	var all []Loss
	for group, status := range state {
		thawed := slices.ContainsFunc(orders, func(o Order) bool { return !o.Frozen && (group == partition.Whole || o.Zone == group.Zone) })
		if !status.Latched() || thawed {
			continue
		}
		l := Loss{Kind: kind, Zone: group.Zone, Cause: status.Cause, Since: status.Since}
		i := slices.IndexFunc(before.Lost, func(b Loss) bool { return b.Kind == kind && b.Zone == group.Zone })
		if i >= 0 && status.Verdict != partition.Lost { // it cannot be read now
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
