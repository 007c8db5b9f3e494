package observed

import (
	"fmt"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/facts"
)

// loadDraining restores the drains that were recorded before the restart.
func (s *State) loadDraining() error {
	ids, err := s.drains.All()
	for _, id := range ids {
		s.observeDraining(id, true)
	}
	return err
}

// SetDraining records in the storage whether a proxy drains, and then passes it to the view's builder.
func (s *State) SetDraining(id mesh.ID, draining bool, session facts.Order) error {
	if s.facts.Own(id).Draining != draining {
		if err := s.recordDraining(id, draining); err != nil {
			return err
		}
	}
	s.facts.Update(id, func(o *facts.Own) { o.Draining, o.Session = draining, session })
	return nil
}

func (s *State) recordDraining(id mesh.ID, draining bool) error {
	if draining {
		return s.drains.Add(id, s.o.Now())
	}
	return s.drains.Remove(id)
}

func (s *State) observeDraining(id mesh.ID, draining bool) {
	s.facts.Update(id, func(o *facts.Own) { o.Draining = draining })
}

// forgetDrains removes the drain records of removed proxies.
func (s *State) forgetDrains(gone func(mesh.ID) bool, sessions Sessions) error {
	for _, id := range s.facts.Which(func(o facts.Own) bool { return o.Draining }) {
		if !gone(id) {
			continue
		}
		if err := sessions.Without(id, func() error {
			err := s.recordDraining(id, false)
			if err == nil {
				s.observeDraining(id, false)
			}
			return err
		}); err != nil {
			return fmt.Errorf("remove the drain record of %s: %w", id, err)
		}
	}
	return nil
}
