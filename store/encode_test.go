package store

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/storetest"
)

func TestEncode(t *testing.T) {
	want := `type: Dataplane
mesh: default
name: web-1
labels:
  kuma.io/workload: web
  switch: "on"
networking:
  address: 10.0.0.1
  inbound:
    - port: 80
      servicePort: 80
      serviceAddress: 127.0.0.1
      address: 10.0.0.1
      tags:
        kuma.io/service: web
        version: "1"
      health:
        ready: false
`
	in := `{type: Dataplane, labels: {switch: "on", kuma.io/workload: web}, name: web-1, networking: {address: 10.0.0.1, inbound: [{tags: {version: "1", kuma.io/service: web}, health: {ready: false}, port: 80}]}}`
	documents, problems := Decode("f.yaml", []byte(in))
	if len(documents) != 1 || len(problems) != 0 {
		t.Fatalf("Decode() = %v, %v", documents, problems)
	}
	got, err := storetest.Encode(documents[0].Object)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("Encode() (-want +got):\n%s", diff)
	}
}

// FuzzDecode checks that Decode does not panic, that its objects are valid, and that Encode and Decode return them
// unchanged.
func FuzzDecode(f *testing.F) {
	for _, pattern := range []string{"testdata/bad/*.yaml", "testdata/good/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, name := range files {
			data, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		documents, problems := Decode("f.yaml", data)
		for _, p := range problems {
			if p.Error() == "" || p.Line > 1+bytes.Count(data, []byte("\n"))+bytes.Count(data, []byte("\r")) {
				t.Fatalf("problem at a line that is not there: %v", p)
			}
		}
		for _, d := range documents {
			if err := d.Object.Validate(); err != nil {
				t.Fatalf("Decode() returned what is not valid: %v", err)
			}
			comesBack(t, d.Object)
		}
	})
}

// emptyOrAbsent makes an empty list equal to an absent one, except for ReachableServices.
var emptyOrAbsent = cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() != ".ReachableServices" }, cmpopts.EquateEmpty())

// comesBack checks that an object is the same after Encode and Decode.
func comesBack(t *testing.T, o mesh.Object) {
	t.Helper()
	text, err := storetest.Encode(o)
	if err != nil {
		t.Fatal(err)
	}
	again, problems := Decode("f.yaml", text)
	if len(again) != 1 {
		t.Fatalf("Encode() wrote what Decode() does not take: %v\n%s", problems, text)
	}
	if diff := cmp.Diff(o, again[0].Object, emptyOrAbsent); diff != "" {
		t.Fatalf("Decode(Encode()) (-want +got):\n%s", diff)
	}
}
