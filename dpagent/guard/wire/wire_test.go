package wire_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

func TestHeader(t *testing.T) {
	want := wire.Header{Kind: wire.Request, Flags: wire.More | wire.Hook, Port: 258, ID: 1<<31 - 1}
	got, payload, ok := wire.Parse(append(want.Append(nil), "rest"...))
	if !ok || got != want || string(payload) != "rest" {
		t.Errorf("Parse() = %v %q %v, want %v", got, payload, ok, want)
	}
	if _, _, ok := wire.Parse(want.Append(nil)[:wire.HeaderSize-1]); ok {
		t.Error("Parse() accepts a truncated header")
	}
}

func TestLimits(t *testing.T) {
	want := []wire.Limit{{ID: "a", Timeout: time.Second}, {ID: "", Timeout: 3600 * time.Second}, {ID: "long", Hook: true}, {ID: "app-liveness", Timeout: time.Second, Liveness: true}}
	var b []byte
	for _, p := range want {
		b = wire.AppendLimit(b, p)
	}
	var got []wire.Limit
	for rest := b; len(rest) > 0; {
		p, next, err := wire.ParseLimit(rest)
		if err != nil {
			t.Fatal(err)
		}
		got, rest = append(got, p), next
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ParseLimit() after AppendLimit() (-want +got):\n%s", diff)
	}
	for cut := 1; cut < len(wire.AppendLimit(nil, want[0])); cut++ {
		if _, _, err := wire.ParseLimit(b[:cut]); err == nil {
			t.Errorf("ParseLimit() accepts the first %d bytes of an entry", cut)
		}
	}
}

// TestLongestTimeout checks that the longest timeout does not become short: 2^32 ms are less than the largest timeout
// of a probe.
func TestLongestTimeout(t *testing.T) {
	p, _, err := wire.ParseLimit(wire.AppendLimit(nil, wire.Limit{ID: "a", Timeout: (1<<31 - 1) * time.Second}))
	if err != nil || p.Timeout < 49*24*time.Hour {
		t.Errorf("timeout = %s, %v, want 49 days or more", p.Timeout, err)
	}
}

func TestRole(t *testing.T) {
	tests := map[string]struct {
		value string
		want  wire.Role
	}{
		"not set":        {"", wire.Role{}},
		"a guard":        {wire.Guard, wire.Role{}},
		"nonsense":       {"worker x", wire.Role{}},
		"first worker":   {wire.Role{Starts: 1}.String(), wire.Role{Worker: true, Starts: 1}},
		"another worker": {wire.Role{Starts: 7, Addresses: []string{"[::1]:9000", "[::1]:9001"}}.String(), wire.Role{Worker: true, Starts: 7, Addresses: []string{"[::1]:9000", "[::1]:9001"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := wire.ParseRole(tc.value)
			if tc.want.Worker != got.Worker || tc.want.Worker && !cmp.Equal(tc.want, got, cmpopts.EquateEmpty()) {
				t.Errorf("ParseRole(%q) = %v, want %v", tc.value, got, tc.want)
			}
		})
	}
}
