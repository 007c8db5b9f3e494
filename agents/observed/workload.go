package observed

import (
	"context"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// Mismatch is a certificate in use whose workload is not the Dataplane's.
type Mismatch struct{ Certificate, Dataplane string } // SPIFFE paths

// CheckWorkload compares the workload of the certificate in use with the Dataplane's, and logs a new mismatch.
func (s *State) CheckWorkload(ctx context.Context, id mesh.ID) (m Mismatch, differs bool) {
	s.mu.Lock()
	_, p := s.o.View().Proxy(id) // under the lock, so that the later of two calls does not have the older view
	o := s.Of(id)
	if p == nil || meshview.WorkloadMatches(p.Dataplane, o) {
		delete(s.mismatches, id)
		s.mu.Unlock()
		return Mismatch{}, false
	}
	m = Mismatch{Certificate: o.Path, Dataplane: p.Dataplane.SPIFFEPath()}
	known := s.remember(id, m)
	s.mu.Unlock()
	if !known {
		s.logMismatch(ctx, id, m)
	}
	return m, true
}

// NoteMismatch logs a mismatch once, since the agent keeps retrying.
func (s *State) NoteMismatch(ctx context.Context, id mesh.ID, m Mismatch) {
	s.mu.Lock()
	known := s.remember(id, m)
	s.mu.Unlock()
	if !known {
		s.logMismatch(ctx, id, m)
	}
}

// remember reports whether this mismatch was logged before. The caller holds s.mu.
func (s *State) remember(id mesh.ID, m Mismatch) (known bool) {
	known = s.mismatches[id] == m
	s.mismatches[id] = m
	return known
}

func (s *State) logMismatch(ctx context.Context, id mesh.ID, m Mismatch) {
	meshName, name := mesh.SplitID(id)
	s.o.Logger.WarnContext(ctx,
		"certificate is for another workload than the Dataplane: its endpoints are not ready until the agent "+
			"joins with a token for the new workload (sondectl generate dataplane-token)",
		"mesh", meshName, "proxy", name, "certificateWorkload", mesh.WorkloadText(m.Certificate),
		"workload", mesh.WorkloadText(m.Dataplane))
}
