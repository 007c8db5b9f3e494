package mesh

// SetDefaults implements Object.
func (m *Mesh) SetDefaults() {}

// SetDefaults implements Object.
func (d *Dataplane) SetDefaults() {}

// SetDefaults implements Object.
func (s *Service) SetDefaults() {}
