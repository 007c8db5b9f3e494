package freeze

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/partition"
)

// Kind of members.
type Kind string

// The kinds, and what else a zone is frozen by. They are labels of metrics.
const (
	Nodes    Kind = "nodes"
	Proxies  Kind = "proxies"
	Operator Kind = "operator"
)

// Verdict is what a leader has judged. It is replaced, never changed. The zero Verdict is that of no leader.
type Verdict struct {
	// Epoch of the leader, and how many verdicts it has made before this one, from 1.
	Epoch int64 `json:"epoch"`
	Count int64 `json:"count"`
	// Lost are the groups that count as lost, but those that an operator has thawed.
	Lost []Loss `json:"lost,omitempty"`
	// Zones are frozen or thaw.
	Zones []Zone `json:"zones,omitempty"`
	// Orders of operators that hold.
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
	// Kept is how many tenths of the endpoints are kept: All while it is frozen, fewer while it thaws.
	Kept int `json:"kept"`
}

// All of the tenths.
const All = 10

// Order of an operator: that a zone is frozen until it is thawed, or that it is thawed until neither it nor the whole mesh is lost.
type Order struct {
	Zone   string    `json:"zone"`
	Frozen bool      `json:"frozen"`
	Since  time.Time `json:"since"`
}

// Newer reports whether v replaces o: that of a later leader does, and of one leader the later one.
func (v *Verdict) Newer(o *Verdict) bool {
	return cmp.Or(cmp.Compare(v.Epoch, o.Epoch), cmp.Compare(v.Count, o.Count)) > 0
}

// sameAs reports whether v says the same as o, whoever has judged it.
func (v *Verdict) sameAs(o *Verdict) bool {
	return slices.EqualFunc(v.Lost, o.Lost, func(a, b Loss) bool {
		return a.Kind == b.Kind && a.Zone == b.Zone && a.Cause == b.Cause && a.Since.Equal(b.Since)
	}) && slices.EqualFunc(v.Zones, o.Zones, func(a, b Zone) bool {
		return a.Name == b.Name && a.By == b.By && a.Kept == b.Kept && a.Since.Equal(b.Since)
	}) && slices.EqualFunc(v.Orders, o.Orders, func(a, b Order) bool {
		return a.Zone == b.Zone && a.Frozen == b.Frozen && a.Since.Equal(b.Since)
	})
}

// zone returns what is said of a zone, and false if it is neither frozen nor thaws.
func (v *Verdict) zone(name string) (Zone, bool) {
	i := slices.IndexFunc(v.Zones, func(z Zone) bool { return z.Name == name })
	if i < 0 {
		return Zone{}, false
	}
	return v.Zones[i], true
}

// order returns what an operator has said of a zone, and false if that is nothing.
func (v *Verdict) order(zone string) (Order, bool) {
	i := slices.IndexFunc(v.Orders, func(o Order) bool { return o.Zone == zone })
	if i < 0 {
		return Order{}, false
	}
	return v.Orders[i], true
}

// held says why nothing may follow from silence, "" if it may.
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

// kept is that of source.Freeze.
func (v *Verdict) kept() map[string]int {
	all := map[string]int{}
	for _, z := range v.Zones {
		all[z.Name] = z.Kept
	}
	return all
}
