package why

import (
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
)

// probes returns the probes that the pod's agent reports.
func (f *Facts) probes() []describe.Probe {
	if f.Plane == nil {
		return nil
	}
	return describe.Probes(f.Plane.Proxy.GetVerdicts())
}

// verdict returns a container's probe, nil if the agent does not report it.
func (f *Facts) verdict(c container, kind mesh.ProbeType) *describe.Probe {
	for _, p := range f.probes() {
		if p.Container == c.Name && p.Probe == string(kind) {
			return &p
		}
	}
	return nil
}
