package agentv1

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

func changed(v VerdictChange_Verdict, ago time.Duration) *VerdictChange {
	return &VerdictChange{Verdict: v, Ago: durationpb.New(ago)}
}

// verdictsOf returns a valid report of one probe, changed by change.
func verdictsOf(change func(*ProbeVerdicts)) *Verdicts {
	p := &ProbeVerdicts{
		Container: "app", Probe: "readiness", Total: 2, Reason: "connection refused",
		Changes: []*VerdictChange{changed(VerdictChange_SUCCESS, time.Hour), changed(VerdictChange_FAILURE, time.Minute)},
	}
	if change != nil {
		change(p)
	}
	return &Verdicts{Probes: []*ProbeVerdicts{p}}
}

func TestCheckVerdicts(t *testing.T) {
	of := func(change func(*ProbeVerdicts)) *Verdicts { return verdictsOf(change) }
	twice := verdictsOf(nil)
	twice.Probes = append(twice.Probes, twice.Probes[0])
	tests := map[string]struct {
		m    *Verdicts
		want string // part of the error, "" for none
	}{
		"nothing":               {&Verdicts{}, ""},
		"a probe":               {of(nil), ""},
		"not checked yet":       {of(func(p *ProbeVerdicts) { p.Changes, p.Total = nil, 0 }), ""},
		"of an inbound":         {of(func(p *ProbeVerdicts) { p.Container, p.Inbound = "", "10.0.0.1:80" }), ""},
		"a verdict to come":     {of(func(p *ProbeVerdicts) { p.Changes[1].Verdict = 99 }), ""},
		"too many":              {&Verdicts{Probes: make([]*ProbeVerdicts, MaxProbes+1)}, "probes: 61"},
		"twice":                 {twice, "only once"},
		"no container":          {of(func(p *ProbeVerdicts) { p.Container = "" }), "probes.container"},
		"a hostile container":   {of(func(p *ProbeVerdicts) { p.Container = "<script>" }), "probes.container"},
		"container and inbound": {of(func(p *ProbeVerdicts) { p.Inbound = "10.0.0.1:80" }), "probes.inbound"},
		"no address":            {of(func(p *ProbeVerdicts) { p.Container, p.Inbound = "", "web" }), "probes.inbound"},
		"an address with zone":  {of(func(p *ProbeVerdicts) { p.Container, p.Inbound = "", "[fe80::1%<b>]:80" }), "probes.inbound"},
		"a hook":                {of(func(p *ProbeVerdicts) { p.Probe = "preStop" }), "probes.probe"},
		"too many changes": {of(func(p *ProbeVerdicts) {
			p.Changes, p.Total = make([]*VerdictChange, MaxChanges+1), MaxChanges+1
		}), "probes.changes"},
		"fewer than listed":   {of(func(p *ProbeVerdicts) { p.Total = 1 }), "probes.changes"},
		"counted, not listed": {of(func(p *ProbeVerdicts) { p.Changes = nil }), "probes.changes"},
		"no age":              {of(func(p *ProbeVerdicts) { p.Changes[0].Ago = nil }), "probes.changes.ago"},
		"in the future":       {of(func(p *ProbeVerdicts) { p.Changes[1].Ago = durationpb.New(-1) }), "probes.changes.ago"},
		"too long ago":        {of(func(p *ProbeVerdicts) { p.Changes[0].Ago = durationpb.New(MaxAgo + 1) }), "probes.changes.ago"},
		"not a duration":      {of(func(p *ProbeVerdicts) { p.Changes[0].Ago = &durationpb.Duration{Seconds: 1, Nanos: -1} }), "probes.changes.ago"},
		"the newest first":    {of(func(p *ProbeVerdicts) { p.Changes[0].Ago = durationpb.New(time.Second) }), "change before"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := CheckVerdicts(tc.m)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("CheckVerdicts() = %v, want %q", err, tc.want)
			}
		})
	}
}

// A forwarded report has the ages at the time of forwarding, and no fields of later versions.
func TestVerdictsArePassedOn(t *testing.T) {
	m := verdictsOf(func(p *ProbeVerdicts) {
		p.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 1000, protowire.VarintType), 1))
	})
	later := m.AsOf(time.Hour, func(s string) string { return s[:7] })
	want := verdictsOf(func(p *ProbeVerdicts) {
		p.Reason = "connect"
		p.Changes[0].Ago, p.Changes[1].Ago = durationpb.New(2*time.Hour), durationpb.New(time.Hour+time.Minute)
	})
	if !proto.Equal(later, want) {
		t.Errorf("AsOf() = %v, want %v", later, want)
	}
	if old := m.AsOf(2*MaxAgo, strings.ToLower); CheckVerdicts(old) != nil {
		t.Errorf("a report of long ago is %v", old)
	}
	same := m.AsOf(time.Hour, strings.ToLower)
	if !m.SameAs(same) {
		t.Error("a report differs from itself an hour later")
	}
	same.Probes[0].Total++
	if m.SameAs(same) {
		t.Error("SameAs() ignores changes")
	}
}

// FuzzVerdicts checks that a report that passes the check still passes it when forwarded, and has a bounded size.
func FuzzVerdicts(f *testing.F) {
	for _, m := range []*Verdicts{{}, verdictsOf(nil), verdictsOf(func(p *ProbeVerdicts) { p.Container, p.Inbound = "", "[::1]:80" })} {
		data, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data, int64(time.Hour))
	}
	f.Fuzz(func(t *testing.T, data []byte, later int64) {
		m := &Verdicts{}
		if proto.Unmarshal(data, m) != nil || CheckVerdicts(m) != nil {
			return
		}
		passed := m.AsOf(time.Duration(later), func(s string) string { return s[:min(len(s), MaxVerdictReason)] })
		if err := CheckVerdicts(passed); err != nil {
			t.Fatalf("CheckVerdicts() = %v after AsOf(%d)", err, later)
		}
		if n := proto.Size(passed); n > 32<<10 {
			t.Fatalf("%d bytes", n)
		}
	})
}
