package observed

import (
	"fmt"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// loadDraining restores what was known about drains before the restart.
func (s *State) loadDraining() error {
	ids, err := s.drains.all()
	for _, id := range ids {
		s.observeDraining(id, true)
	}
	return err
}

// SetDraining records in the storage whether a proxy drains, and then passes it to the view's builder.
func (s *State) SetDraining(id mesh.ID, draining bool) error {
	var err error
	if draining {
		err = s.drains.write(id, s.o.Now())
	} else {
		err = s.drains.remove(id)
	}
	if err != nil {
		return err
	}
	s.observeDraining(id, draining)
	return nil
}

func (s *State) observeDraining(id mesh.ID, draining bool) {
	s.Update(id, func(o *mesh.Observation) { o.Draining = draining })
}

// forgetDrains removes the records of proxies that are gone.
func (s *State) forgetDrains(gone func(mesh.ID) bool, sessions Sessions) error {
	for _, id := range s.observed.which(func(o mesh.Observation) bool { return o.Draining }) {
		if !gone(id) {
			continue
		}
		if err := sessions.Without(id, func() error { return s.SetDraining(id, false) }); err != nil {
			return fmt.Errorf("forget the drain of %s: %w", id, err)
		}
	}
	return nil
}
