package store

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTypos reads documents with a typo. The field that the typo leaves out must not be reported as another mistake,
// but every other mistake must be.
func TestTypos(t *testing.T) {
	const (
		dataplane = "type: Dataplane\nname: web\nmesh: default\n"
		inbound   = "  inbound:\n  - port: 80\n    tags: {kuma.io/service: web}\n"
	)
	tests := map[string]struct {
		text string
		want []string
	}{
		"a list":          {dataplane + "networking:\n  address: 10.0.0.1\n  inbonud:\n  - port: 80\n", []string{"line 6: networking.inbonud: is an unknown field: did you mean inbound?"}},
		"a required text": {dataplane + "networking:\n  addresz: 10.0.0.1\n" + inbound, []string{"line 5: networking.addresz: is an unknown field: did you mean address?"}},
		"all of it":       {dataplane + "networkng:\n  address: 10.0.0.1\n", []string{"line 4: networkng: is an unknown field: did you mean networking?"}},
		"within a list":   {dataplane + "networking:\n  address: 10.0.0.1\n  inbound:\n  - prot: 80\n    tags: {kuma.io/service: web}\n", []string{"line 7: networking.inbound[0].prot: is an unknown field: did you mean port?"}},
		"what another field refers to": {"type: Mesh\nname: shop\nmtls:\n  enabledBackend: ca\n  backnds:\n  - {name: ca, type: builtin}\n",
			[]string{"line 5: mtls.backnds: is an unknown field: did you mean backends?"}},
		"below a typo": {dataplane + "networking:\n  address: 10.0.0.1\n  inbonud:\n  - prot: 80\n", []string{
			"line 6: networking.inbonud: is an unknown field: did you mean inbound?", "line 7: networking.inbound[0].prot: is an unknown field: did you mean port?",
		}},
		"of another type":           {dataplane + "networking:\n  addresz: [10.0.0.1]\n" + inbound, []string{"line 5: networking.addresz: is an unknown field: did you mean address?"}},
		"of keys that users choose": {dataplane + "networking:\n  address: 10.0.0.1\n  inbound:\n  - port: 80\n    tgas: {kuma.io/service: 5}\n", []string{"line 8: networking.inbound[0].tgas: is an unknown field: did you mean tags?"}},
		"the name":                  {"type: Mesh\nnam: shop\n", []string{"line 2: nam: is an unknown field: did you mean name?"}},
		"the type":                  {"typ: Mesh\nname: shop\n", []string{"line 1: typ: is an unknown field: did you mean type?"}},
		"in metadata":               {"type: Mesh\nmetadata:\n  nam: shop\n", []string{"line 3: metadata.nam: is an unknown field: did you mean name?"}},
		"of the spec":               {dataplane + "spce:\n  networking:\n    address: 10.0.0.1\n", []string{"line 4: spce: is an unknown field"}},
		"a name like none":          {dataplane + "networking:\n  whereToFind: 10.0.0.1\n" + inbound, []string{"line 5: networking.whereToFind: is an unknown field: known here are"}},
		"beside the right one": {dataplane + "networking:\n  address: nowhere\n  addresz: 10.0.0.1\n" + inbound, []string{
			`line 5: networking.address: "nowhere": must be an IP address`, "line 6: networking.addresz: is an unknown field: did you mean address?",
		}},
		"other mistakes": {dataplane + "networking:\n  addresz: 10.0.0.1\n  inbound:\n  - port: 70000\n    serverFirst: \"false\"\n    tags: {kuma.io/service: web}\n", []string{
			"line 5: networking.addresz: is an unknown field: did you mean address?", "line 7: networking.inbound[0].port: 70000: must be a port from 1 to 65535",
			`line 8: networking.inbound[0].serverFirst: "false": must be true or false: write false without quotes`,
		}},
		"a Mesh, of which others are": {"type: Mesh\nname: shop\nmtsl: {}\n---\ntype: Dataplane\nname: web\nmesh: shop\nnetworking:\n  address: 10.0.0.1\n" + inbound,
			[]string{"line 3: mtsl: is an unknown field: did you mean mtls?"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "mesh.yaml")
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, problems, err := Read(path, nil, "")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range problems {
				if p.Severity == Error {
					got = append(got, strings.Replace(strings.TrimPrefix(p.String(), path+", document 1, "), ": error: ", ": ", 1))
				}
			}
			sameBegin := cmp.Comparer(func(a, b string) bool { return strings.HasPrefix(a, b) || strings.HasPrefix(b, a) })
			if diff := cmp.Diff(tc.want, got, sameBegin); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}
