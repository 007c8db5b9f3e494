package identity

import (
	"context"
	"fmt"
	"reflect"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Recorded returns the last Mesh of each mesh with mTLS.
func (a *Authority) Recorded() map[string]*mesh.Mesh {
	a.mu.Lock()
	defer a.mu.Unlock()
	recorded := map[string]*mesh.Mesh{}
	for name, m := range a.meshes {
		if spec := m.Current().recorded; spec != nil {
			recorded[name] = &mesh.Mesh{Name: name, Spec: *spec, Recorded: true}
		}
	}
	return recorded
}

// Record stores the spec of a Mesh with its CA; nil removes the spec. It only writes changes.
func (a *Authority) Record(ctx context.Context, meshName string, spec *mesh.MeshSpec) error {
	m, err := a.mesh(meshName)
	if err != nil {
		return fmt.Errorf("record mesh: %w", err)
	}
	_, err = m.Change(ctx, func(s *state) (*state, error) {
		if reflect.DeepEqual(s.recorded, spec) {
			return nil, nil
		}
		next := s.With(s.Set)
		next.recorded = spec
		return next, nil
	})
	return err
}

// checkRecorded sets the defaults of a stored spec, and validates it.
func checkRecorded(meshName string, spec *mesh.MeshSpec) error {
	if spec == nil {
		return nil
	}
	m := &mesh.Mesh{Name: meshName, Spec: *spec}
	m.SetDefaults()
	if err := m.Validate(); err != nil {
		return fmt.Errorf("mesh: %w", err)
	}
	*spec = m.Spec
	return nil
}
