package why

import (
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
)

// probes returns the probes that the pod's agent reports, and how many are not listed.
func (f *Facts) probes() (listed []describe.Probe, leftOut uint32) {
	if f.Plane == nil {
		return nil, 0
	}
	verdicts := f.Plane.Proxy.GetVerdicts()
	return describe.Probes(verdicts), verdicts.GetLeftOut()
}

// verdict returns a container's probe, nil if the agent does not report it.
func (f *Facts) verdict(c container, kind mesh.ProbeType) *describe.Probe {
	listed, _ := f.probes()
	for _, p := range listed {
		if p.Container == c.Name && p.Probe == string(kind) {
			return &p
		}
	}
	return nil
}
