package lists

import (
	"testing"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Verdicts are listed if they are requested, and as many as an answer has room for.
func TestVerdictsOfProxies(t *testing.T) {
	f := newFakes(t)
	of := func(n int) *adminv1.Verdicts {
		return &adminv1.Verdicts{Probes: make([]*adminv1.ProbeVerdicts, n), LeftOut: 1}
	}
	f.of.verdicts = map[mesh.ID]*adminv1.Verdicts{"default/web-1": of(adminv1.MaxListedProbes - 1), "default/web-2": of(2), "other/web-1": of(1)}
	for _, ask := range []bool{false, true} {
		response, err := f.ListProxies(t.Context(), &adminv1.ListProxiesRequest{Verdicts: ask})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []struct {
			probes  int
			leftOut uint32
		}{{adminv1.MaxListedProbes - 1, 1}, {0, 3}, {1, 1}} {
			p := response.GetProxies()[i]
			if got := p.GetVerdicts(); !ask && got != nil || ask && (len(got.GetProbes()) != want.probes || got.GetLeftOut() != want.leftOut) {
				t.Errorf("requested %v: %s/%s has %d probes and leaves out %d, want %+v", ask, p.GetMesh(), p.GetName(), len(got.GetProbes()), got.GetLeftOut(), want)
			}
		}
	}
}
