package identity

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func specOf(mode mesh.MTLSMode) *mesh.MeshSpec {
	m := &mesh.Mesh{Spec: mesh.MeshSpec{MTLS: &mesh.MTLS{EnabledBackend: "ca", Backends: []mesh.Backend{{Name: "ca", Type: mesh.BackendBuiltin, Mode: mode}}}}}
	m.SetDefaults()
	return &m.Spec
}

// TestRecordIsKept shows that the record survives rotations and restarts.
func TestRecordIsKept(t *testing.T) {
	storage, now := newMemory(), newClock()
	a := open(t, storage, now.Now)
	if err := a.Record(t.Context(), "prod", specOf(mesh.ModeStrict)); err == nil {
		t.Error("a mesh without a CA is recorded")
	}
	if err := a.Ensure(t.Context(), "prod", 0); err != nil {
		t.Fatal(err)
	}
	is := func(when string, want *mesh.MeshSpec) {
		t.Helper()
		for name, a := range map[string]*Authority{"": a, "after a restart, ": open(t, storage, now.Now)} {
			var got *mesh.MeshSpec
			if m := a.Recorded()["prod"]; m != nil {
				got = &m.Spec
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s%s (-want +got):\n%s", name, when, d)
			}
		}
	}
	is("at first", nil)
	for _, spec := range []*mesh.MeshSpec{specOf(mesh.ModeStrict), specOf(mesh.ModePermissive)} {
		if err := a.Record(t.Context(), "prod", spec); err != nil {
			t.Fatal(err)
		}
		is("recorded", spec)
	}
	if err := a.StartRotation(t.Context(), "prod", 0); err != nil {
		t.Fatal(err)
	}
	is("while the CA is rotated", specOf(mesh.ModePermissive))
	if err := a.Record(t.Context(), "prod", nil); err != nil {
		t.Fatal(err)
	}
	is("no longer recorded", nil)
}
