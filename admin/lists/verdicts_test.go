package lists

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Verdicts are listed if they are requested. An answer has a limited number of them, the ones that do not succeed
// first.
func TestVerdictsOfProxies(t *testing.T) {
	of := func(succeed, fail int) *adminv1.Verdicts {
		probe := func(verdict string) []*adminv1.ProbeVerdicts {
			return []*adminv1.ProbeVerdicts{{Changes: []*adminv1.VerdictChange{{Verdict: verdict}}}}
		}
		return &adminv1.Verdicts{LeftOut: 1, Probes: slices.Concat(slices.Repeat(probe("success"), succeed), slices.Repeat(probe("failure"), fail))}
	}
	type listed struct {
		probes  int
		leftOut uint32
	}
	const most = adminv1.MaxListedProbes
	tests := map[string]struct {
		all  [3]*adminv1.Verdicts
		want [3]listed
	}{
		"room for all":                {[3]*adminv1.Verdicts{of(most-3, 1), of(1, 0), of(0, 1)}, [3]listed{{most - 2, 1}, {1, 1}, {1, 1}}},
		"succeeding ones are omitted": {[3]*adminv1.Verdicts{of(most-1, 0), of(2, 1), of(0, 1)}, [3]listed{{0, most}, {1, 3}, {1, 1}}},
		"the last one has room":       {[3]*adminv1.Verdicts{of(most-1, 0), of(2, 0), of(1, 0)}, [3]listed{{most - 1, 1}, {0, 3}, {1, 1}}},
		"too many do not succeed":     {[3]*adminv1.Verdicts{of(0, most-1), of(1, 1), of(1, 2)}, [3]listed{{most - 1, 1}, {1, 2}, {0, 4}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFakes(t)
			for _, ask := range []bool{false, true} {
				f.of.verdicts = map[mesh.ID]*adminv1.Verdicts{}
				for i, id := range []mesh.ID{"default/web-1", "default/web-2", "other/web-1"} {
					f.of.verdicts[id] = proto.CloneOf(tc.all[i])
				}
				response, err := f.ListProxies(t.Context(), &adminv1.ListProxiesRequest{Verdicts: ask})
				if err != nil {
					t.Fatal(err)
				}
				for i, want := range tc.want {
					p := response.GetProxies()[i]
					if got := p.GetVerdicts(); !ask && got != nil || ask && (listed{len(got.GetProbes()), got.GetLeftOut()}) != want {
						t.Errorf("requested %v: %s/%s has %d probes and leaves out %d, want %+v", ask, p.GetMesh(), p.GetName(), len(got.GetProbes()), got.GetLeftOut(), want)
					}
				}
			}
		})
	}
}
