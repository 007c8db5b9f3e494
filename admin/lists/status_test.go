package lists

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// TestAgentsAreAskedWhetherTheyLive checks that agents are pinged only if the caller requests that, and that the answer
// names those that do not respond.
func TestAgentsAreAskedWhetherTheyLive(t *testing.T) {
	tests := map[string]struct {
		ask     bool
		want    map[string]bool
		missing []string
	}{
		"asked":     {true, map[string]bool{"web-1": true, "web-2": false}, []string{"a", "b"}},
		"not asked": {false, map[string]bool{"web-1": false, "web-2": false}, []string{"a"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFakes(t)
			f.of.agents = map[mesh.ID]*adminv1.Agent{"default/web-1": {}, "default/web-2": {}}
			f.Missing = func() []string { return []string{"a"} }
			f.of.unresponsive = func(meshName string) (map[mesh.ID]bool, []string) {
				if !tc.ask || meshName != "default" {
					t.Errorf("agents of mesh %q are pinged", meshName)
				}
				return map[mesh.ID]bool{"default/web-1": true, "default/gone": true}, []string{"b"}
			}
			got, err := f.ListProxies(t.Context(), &adminv1.ListProxiesRequest{Filter: &adminv1.Filter{Mesh: "default"}, Ask: tc.ask})
			if err != nil {
				t.Fatal(err)
			}
			is := map[string]bool{}
			for _, p := range got.GetProxies() {
				if p.GetAgent() != nil {
					is[p.GetName()] = p.GetAgent().GetUnresponsive()
				}
			}
			if diff := cmp.Diff(tc.want, is); diff != "" {
				t.Errorf("agents without an answer (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.missing, got.GetTail().GetMissingReplicas()); diff != "" {
				t.Errorf("missing replicas (-want +got):\n%s", diff)
			}
		})
	}
}

// sinceThen knows the times of the service api, and of inbounds and outbounds of api-1.
type sinceThen time.Time

func (s sinceThen) Inbound(proxy mesh.ID, _ netip.AddrPort) time.Time {
	return s.of(proxy == "default/api-1")
}
func (s sinceThen) Outbound(proxy mesh.ID, _ netip.AddrPort) time.Time {
	return s.of(proxy == "default/api-1")
}
func (s sinceThen) Without(service mesh.ID) time.Time { return s.of(service == "default/api") }

func (s sinceThen) of(known bool) time.Time {
	if !known {
		return time.Time{}
	}
	return time.Time(s)
}

// TestListsSaySince checks that unknown times are absent.
func TestListsSaySince(t *testing.T) {
	f := newHealthFakes(t)
	then := time.Now().Add(-time.Hour)
	f.Since = sinceThen(then)
	dataplanes, err := f.ListDataplanes(t.Context(), &adminv1.ListDataplanesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, d := range dataplanes.GetDataplanes() {
		for _, in := range d.GetInbounds() {
			if in.GetSince() != nil {
				seen++
				if !in.GetSince().AsTime().Equal(then) {
					t.Errorf("an inbound is in its state since %s, want %s", in.GetSince().AsTime(), then)
				}
			}
		}
	}
	if seen != 1 {
		t.Errorf("%d inbounds have a time, want 1", seen)
	}
	services, err := f.ListServices(t.Context(), &adminv1.ListServicesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range services.GetServices() {
		if got := s.GetWithoutSince() != nil; got != (s.GetName() == "api") {
			t.Errorf("service %s has a time: %t", s.GetName(), got)
		}
	}
}
