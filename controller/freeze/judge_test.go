package freeze

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/partition"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// reading parses a text: words are zones, each letter a member that is seen (h), silent (s) or not yet seen (u). The
// word after a colon is the zone: "hhs:a h". A text that begins with ! is a failed reading, and "-" is nil.
func reading(text string, at time.Time, silence time.Duration) *partition.Reading {
	r := &partition.Reading{At: at}
	if text == "-" {
		return nil
	}
	if failed, is := strings.CutPrefix(text, "!"); is {
		r.Failed = partition.Cause(failed)
		return r
	}
	for word := range strings.FieldsSeq(text) {
		letters, zone, _ := strings.Cut(word, ":")
		for i, letter := range letters {
			m := partition.Member{Name: fmt.Sprint(zone, i), Zone: zone}
			switch letter {
			case 'h':
				m.Heard = at
			case 's':
				m.Heard = at.Add(-silence)
			}
			r.Members = append(r.Members, m)
		}
	}
	return r
}

// text formats a verdict: "a:nodes:10" for a zone, "lost nodes/a one-zone" for a group.
func (v *Verdict) text() string {
	var all []string
	for _, z := range v.Zones {
		all = append(all, fmt.Sprintf("%s:%s:%d", z.Name, z.By, z.Kept))
	}
	for _, l := range v.Lost {
		all = append(all, fmt.Sprintf("lost %s/%s %s", l.Kind, l.Zone, l.Cause))
	}
	for _, o := range v.Orders {
		all = append(all, fmt.Sprintf("order %s %t", o.Zone, o.Frozen))
	}
	return strings.Join(all, ", ")
}

func TestNext(t *testing.T) {
	type look struct{ nodes, proxies string }
	tests := map[string]struct {
		before Verdict
		looks  []look // one per second
		want   string
	}{
		"all is well":                   {looks: []look{{"hhh:a hhh:b", "hhhh:a hhhh:b"}}},
		"one dead node":                 {looks: []look{{"shh:a hhh:b", "hhhh:a hhhh:b"}}},
		"one dead node of two":          {looks: []look{{"sh:a hh:b", "sshh:a hhhh:b"}}},
		"a mesh of one node":            {looks: []look{{"s:a", "s:a"}}},
		"a mesh of one node, no zone":   {looks: []look{{"s", "ss"}}, want: "lost proxies/ all"},
		"a zone":                        {looks: []look{{"sss:a hhh:b", "-"}}, want: "a:nodes:10, lost nodes/a one-zone"},
		"all zones":                     {looks: []look{{"sss:a sss:b", "-"}}, want: "a:nodes:10, b:nodes:10, lost nodes/ all, lost nodes/a all, lost nodes/b all"},
		"zones of one node each":        {looks: []look{{"s:a s:b s:c", "-"}}, want: "a:nodes:10, b:nodes:10, c:nodes:10, lost nodes/ all"},
		"one of three such zones":       {looks: []look{{"s:a h:b h:c", "-"}}},
		"nodes without zones":           {looks: []look{{"sss", "-"}}, want: ":nodes:10, lost nodes/ all"},
		"a zone that is well stays so":  {looks: []look{{"sssssss:a h:b", "-"}}, want: "a:nodes:10, lost nodes/ one-zone, lost nodes/a one-zone"},
		"half of a zone, with the mesh": {looks: []look{{"ss:a sh:b", "-"}}, want: "a:nodes:10, b:nodes:10, lost nodes/ all, lost nodes/a all"},
		"while the mesh is lost":        {looks: []look{{"ss:a sh:b", "-"}, {"ss:a hh:b", "-"}}, want: "a:nodes:10, b:nodes:10, lost nodes/ one-zone, lost nodes/a one-zone"},
		"until the mesh is seen again": {
			looks: []look{{"shh:a ssss:b", "-"}, {"shh:a hhhh:b", "-"}, {"shh:a hhhh:b", "-"}, {"shh:a hhhh:b", "-"}}, want: "a:nodes:9, b:nodes:10",
		},
		"but as long as half of it is not": {
			looks: []look{{"sh:a ssss:b", "-"}, {"sh:a hhhh:b", "-"}, {"sh:a hhhh:b", "-"}, {"sh:a hhhh:b", "-"}}, want: "a:nodes:10, b:nodes:9",
		},
		"a zone of one node thaws with the mesh": {
			looks: []look{{"s:a sss:b", "-"}, {"s:a hhh:b", "-"}, {"s:a hhh:b", "-"}, {"s:a hhh:b", "-"}}, want: "a:nodes:9, b:nodes:10",
		},
		"nodes without a zone beside half a zone": {looks: []look{{"sss sh:b", "-"}}, want: ":nodes:10, b:nodes:10, lost nodes/ all"},
		"unseen between":                 {looks: []look{{"ss:a sh:b", "-"}, {"!api-server-away", "-"}}, want: "a:nodes:10, b:nodes:10, lost nodes/ all, lost nodes/a all"},
		"proxies":                        {looks: []look{{"hhh:a hhh:b", "sssh:a hhhh:b"}}, want: "lost proxies/a one-zone"},
		"proxies that may be elsewhere":  {looks: []look{{"hhh:a hhh:b", "uuuu:a uuuu:b"}}},
		"proxies not judged":             {looks: []look{{"hhh:a", "ssss:a"}, {"hhh:a", "-"}}, want: "lost proxies/ all, lost proxies/a all"},
		"API server away":                {looks: []look{{"sss:a hhh:b", "-"}, {"!api-server-away", "-"}}, want: "a:nodes:10, lost nodes/a one-zone"},
		"API server away from the start": {looks: []look{{"!api-server-away", "-"}}},
		"seen again: it begins to thaw":  {looks: []look{{"sss:a hhh:b", "-"}, {"hhh:a hhh:b", "-"}, {"hhh:a hhh:b", "-"}, {"hhh:a hhh:b", "-"}}, want: "a:nodes:9"},
		"and thaws a step each 3 s": {looks: []look{
			{"sss:a hhh:b", "-"}, {"hhh:a hhh:b", "-"}, {"hhh:a hhh:b", "-"}, {"hhh:a hhh:b", "-"}, {"hhh:a hhh:b", "-"}, {"hhh:a hhh:b", "-"}, {"hhh:a hhh:b", "-"},
		}, want: "a:nodes:8"},
		"lost again while it thaws": {looks: []look{
			{"sss:a hhh:b", "-"}, {"hhh:a hhh:b", "-"}, {"hhh:a hhh:b", "-"}, {"hhh:a hhh:b", "-"}, {"sss:a hhh:b", "-"},
		}, want: "a:nodes:10, lost nodes/a one-zone"},
		"no zone thaws unseen": {
			before: Verdict{Zones: []Zone{{Name: "a", By: Nodes, Kept: 5}}}, looks: []look{{"!api-server-away", "-"}}, want: "a:nodes:5",
		},
		"zone by zone": {
			before: Verdict{Zones: []Zone{{Name: "a", By: Nodes, Kept: 1}, {Name: "b", By: Nodes, Kept: 10}}}, looks: []look{{"hhh:a hhh:b", "-"}}, want: "b:nodes:10",
		},
		"a leader before this one": {
			before: Verdict{Lost: []Loss{{Nodes, "a", partition.OneZone, epoch}}, Zones: []Zone{{"a", Nodes, epoch, 10}}},
			looks:  []look{{"shh:a hhh:b", "-"}}, want: "a:nodes:10, lost nodes/a one-zone",
		},
		"a zone that has gone": {looks: []look{{"sss:a hhh:b", "-"}, {"hhh:b", "-"}}, want: "a:nodes:9"},
		"an operator freezes":  {before: Verdict{Orders: []Order{{"a", true, epoch}}}, looks: []look{{"hhh:a", "-"}}, want: "a:operator:10, order a true"},
		"an operator thaws what is lost": {
			before: Verdict{Orders: []Order{{"a", false, epoch}}, Zones: []Zone{{"a", Nodes, epoch, 10}}},
			looks:  []look{{"sss:a hhh:b", "-"}}, want: "a:nodes:9, order a false",
		},
		"that holds until the loss is over": {
			before: Verdict{Orders: []Order{{"a", false, epoch}}}, looks: []look{{"sss:a hhh:b", "h:a"}, {"hhh:a hhh:b", "h:a"}, {"hhh:a hhh:b", "h:a"}, {"hhh:a hhh:b", "h:a"}},
		},
		"and not only until nothing is read": {
			before: Verdict{Orders: []Order{{"a", false, epoch}}}, looks: []look{{"sss:a hhh:b", "-"}, {"!api-server-away", "-"}}, want: "order a false",
		},
		"an order to thaw holds while the mesh is lost": {
			before: Verdict{Orders: []Order{{"b", false, epoch}}}, looks: []look{{"ss:a sh:b", "-"}, {"ss:a hh:b", "-"}, {"ss:a sh:b", "-"}},
			want: "a:nodes:10, lost nodes/a all, order b false",
		},
		"and the mesh freezes no further zone": {
			before: Verdict{Orders: []Order{{"a", false, epoch}}}, looks: []look{{"sssssss:a hhhh:b", "-"}, {"sssssss:a shhh:b", "-"}}, want: "order a false",
		},
		"what the mesh has frozen before stays so": {
			before: Verdict{Orders: []Order{{"c", false, epoch}}, Zones: []Zone{{"b", Nodes, epoch, 10}}},
			looks:  []look{{"sshh:a sshh:b sh:c", "-"}}, want: "b:nodes:10, order c false",
		},
		"however few of its nodes are silent": {
			before: Verdict{Orders: []Order{{"c", false, epoch}}, Zones: []Zone{{"b", Nodes, epoch, 10}}},
			looks:  []look{{"sshh:a shhh:b ss:c", "-"}}, want: "b:nodes:10, order c false",
		},
		"an operator thaws the proxies of a zone": {
			before: Verdict{Orders: []Order{{"a", false, epoch}}}, looks: []look{{"hhh:a hhh:b", "sssss:a h:b"}}, want: "order a false",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			j, v := newJudge(&tc.before), &tc.before
			for i, l := range tc.looks {
				at := epoch.Add(time.Hour).Add(time.Duration(i) * time.Second)
				v = j.next(v, readings{*reading(l.nodes, at, nodeSilence), reading(l.proxies, at, proxySilence)})
			}
			if got := v.text(); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
			if err := v.Validate(); err != nil {
				t.Errorf("a leader's verdict is invalid: %v", err)
			}
		})
	}
}

func TestHeldSaysWhy(t *testing.T) {
	for name, tc := range map[string]struct {
		v    Verdict
		want string
	}{
		"nothing":  {Verdict{Zones: []Zone{{"a", Nodes, epoch, 5}}}, ""},
		"nodes":    {Verdict{Lost: []Loss{{Nodes, "a", partition.OneZone, epoch}}, Zones: []Zone{{"a", Nodes, epoch, 10}}}, "most nodes of zone a are not seen (one-zone)"},
		"proxies":  {Verdict{Lost: []Loss{{Proxies, "", partition.All, epoch}}}, "most proxies of the mesh are not seen (all)"},
		"operator": {Verdict{Zones: []Zone{{"a", Operator, epoch, 10}}}, "an operator has frozen zone a"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.v.held(); got != tc.want {
				t.Errorf("held() = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestNewer(t *testing.T) {
	for name, tc := range map[string]struct {
		v, o Verdict
		want bool
	}{
		"later leader": {Verdict{Epoch: 2, Count: 1}, Verdict{Epoch: 1, Count: 9}, true},
		"lower epoch":  {Verdict{Epoch: 1, Count: 9}, Verdict{Epoch: 2, Count: 1}, false},
		"later":        {Verdict{Epoch: 2, Count: 2}, Verdict{Epoch: 2, Count: 1}, true},
		"the same":     {Verdict{Epoch: 2, Count: 2}, Verdict{Epoch: 2, Count: 2}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.v.Newer(&tc.o); got != tc.want {
				t.Errorf("Newer() = %t", got)
			}
		})
	}
}
