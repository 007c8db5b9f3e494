package meshview

// Unchecked reports whether an endpoint of a mesh is ready although nothing checks its application.
func (v *View) Unchecked(m *Mesh, e Endpoint) bool {
	if e.Health != Ready {
		return false
	}
	if e.Declared {
		return !v.ServicesChecked
	}
	p := m.Proxies.Get(e.Proxy)
	if p == nil {
		return false
	}
	for in := range p.Dataplane.Spec.Networking.ActiveInbounds() {
		if p.Dataplane.InboundAddress(in) == e.Address {
			return p.Dataplane.Unchecked(in)
		}
	}
	return false
}
