package mesh

// Validate implements Object.
func (m *Mesh) Validate() error { return nil }

// Validate implements Object.
func (d *Dataplane) Validate() error { return nil }

// Validate implements Object.
func (s *Service) Validate() error { return nil }
