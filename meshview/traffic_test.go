package meshview

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestGetTraffic compares GetTraffic with what the Envoys of callers get, for all healths of three endpoints, on two
// nodes and without a node.
func TestGetTraffic(t *testing.T) {
	nodes := []string{"a", "b", ""}
	for bits := range 3 * 3 * 3 * 3 {
		s := &Service{}
		for i, n := range []int{bits % 3, bits / 3 % 3, bits / 9 % 3} {
			s.Endpoints = append(s.Endpoints, Endpoint{Address: netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:80", i)), Health: Health(n), Node: nodes[(i+bits/27)%3]})
		}
		for _, kind := range []string{"", "local", "headless"} {
			s.Local, s.Headless = kind == "local", kind == "headless"
			var sent []Endpoint
			for _, caller := range nodes {
				for _, e := range s.For(caller).Serving() {
					if !slices.Contains(sent, e) {
						sent = append(sent, e)
					}
				}
			}
			for i, gets := range s.GetTraffic() {
				if want := slices.Contains(sent, s.Endpoints[i]); gets != want {
					t.Fatalf("endpoint %d of %s service %v gets traffic: %t, want %t", i, kind, s.Endpoints, gets, want)
				}
			}
		}
	}
	// As if guarded liveness holds the restarts of all endpoints.
	held := &Service{Endpoints: []Endpoint{{Health: Draining, Reason: LivenessHeld}, {Health: Draining, Reason: LivenessHeld}}}
	if diff := cmp.Diff([]bool{true, true}, held.GetTraffic()); diff != "" {
		t.Errorf("GetTraffic() (-want +got):\n%s", diff)
	}
}
