package freeze

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/partition"
)

// Kind of the members of a group.
type Kind string

// Kinds, which are also causes of frozen zones and values of metric labels.
const (
	Nodes    Kind = "nodes"
	Proxies  Kind = "proxies"
	Operator Kind = "operator"
)

// Verdict is a leader's judgement. It is immutable. The zero Verdict applies before the first leader's.
type Verdict struct {
	// Epoch of the leader, and the number of its verdict, counted from 1.
	Epoch int64 `json:"epoch"`
	Count int64 `json:"count"`
	// Lost are the groups that count as lost, except those that an operator has thawed.
	Lost []Loss `json:"lost,omitempty"`
	// Zones are the frozen and the thawing ones.
	Zones []Zone `json:"zones,omitempty"`
	// Orders of operators that are in effect.
	Orders []Order `json:"orders,omitempty"`
}

// Loss is a group that counts as lost.
type Loss struct {
	Kind Kind `json:"kind"`
	// Zone is "" for the whole mesh.
	Zone  string          `json:"zone,omitempty"`
	Cause partition.Cause `json:"cause"`
	Since time.Time       `json:"since"`
}

// Zone is a zone in which endpoints are kept.
type Zone struct {
	// Name is "" for nodes without a zone.
	Name string `json:"name,omitempty"`
	// By is Nodes or Operator.
	By    Kind      `json:"by"`
	Since time.Time `json:"since"`
	// Kept is the number of tenths of the endpoints that are kept: All while the zone is frozen, fewer while it thaws.
	Kept int `json:"kept"`
}

// All tenths.
const All = 10

// Order of an operator for a zone. An order to freeze is in effect until an order to thaw. An order to thaw is in
// effect until neither the zone nor the whole mesh is lost.
type Order struct {
	Zone   string    `json:"zone"`
	Frozen bool      `json:"frozen"`
	Since  time.Time `json:"since"`
}

// Newer reports whether v replaces o, because its leader is later, or because the same leader made it later.
func (v *Verdict) Newer(o *Verdict) bool {
	return cmp.Or(cmp.Compare(v.Epoch, o.Epoch), cmp.Compare(v.Count, o.Count)) > 0
}

// sameAs reports whether v and o have the same effect, whoever made them.
func (v *Verdict) sameAs(o *Verdict) bool {
	return slices.EqualFunc(v.Lost, o.Lost, func(a, b Loss) bool {
		return a.Kind == b.Kind && a.Zone == b.Zone && a.Cause == b.Cause && a.Since.Equal(b.Since)
	}) && slices.EqualFunc(v.Zones, o.Zones, func(a, b Zone) bool {
		return a.Name == b.Name && a.By == b.By && a.Kept == b.Kept && a.Since.Equal(b.Since)
	}) && slices.EqualFunc(v.Orders, o.Orders, func(a, b Order) bool {
		return a.Zone == b.Zone && a.Frozen == b.Frozen && a.Since.Equal(b.Since)
	})
}

// zone returns the state of a zone, and false if the zone is neither frozen nor thawing.
func (v *Verdict) zone(name string) (Zone, bool) {
	i := slices.IndexFunc(v.Zones, func(z Zone) bool { return z.Name == name })
	if i < 0 {
		return Zone{}, false
	}
	return v.Zones[i], true
}

// order returns the order for a zone, and false if there is no order.
func (v *Verdict) order(zone string) (Order, bool) {
	i := slices.IndexFunc(v.Orders, func(o Order) bool { return o.Zone == zone })
	if i < 0 {
		return Order{}, false
	}
	return v.Orders[i], true
}

// held returns why silent nodes and proxies must not be treated as dead, "" if they may.
func (v *Verdict) held() string {
	var why []string
	for _, l := range v.Lost {
		why = append(why, fmt.Sprintf("most %s of %s are not seen (%s)", l.Kind, groupText(l.Zone), l.Cause))
	}
	for _, z := range v.Zones {
		if z.By == Operator && z.Kept == All {
			why = append(why, "an operator has frozen "+zoneText(z.Name))
		}
	}
	return strings.Join(why, "; ")
}

func groupText(zone string) string {
	if zone == "" {
		return "the mesh"
	}
	return "zone " + zone
}

func zoneText(zone string) string {
	if zone == "" {
		return "the nodes without a zone"
	}
	return "zone " + zone
}

// kept returns the verdict in the form for source.Freeze.
func (v *Verdict) kept() map[string]int {
	all := map[string]int{}
	for _, z := range v.Zones {
		all[z.Name] = z.Kept
	}
	return all
}
