package agents

import (
	"context"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// mismatch is a certificate in use that names another workload than the Dataplane.
type mismatch struct{ certificate, dataplane string } // SPIFFE paths

// Changed tells the server that the view of a change is the current one. Agents whose certificate names another workload
// than the Dataplane does now are asked to renew it, those of an earlier proxy of the same name lose their session, and all learn what
// they should know of the new view.
func (s *Server) Changed(c meshview.Change) {
	for _, id := range c.Proxies {
		if _, p := c.After.Proxy(id); p != nil {
			s.replaceInstance(context.Background(), p)
			s.followDataplane(dataplaneOf(c.Before, id), p.Dataplane)
		}
		s.checkWorkload(context.Background(), id)
		s.wakeSession(id)
	}
	for _, id := range c.Observed {
		if _, p := c.After.Proxy(id); !p.Dataplane.IsPod() {
			s.wakeSession(id)
		}
	}
}

// dataplaneOf returns the Dataplane of a proxy in a view, nil if there is none.
func dataplaneOf(v *meshview.View, id mesh.ID) *mesh.Dataplane {
	_, p := v.Proxy(id)
	if p == nil {
		return nil
	}
	return p.Dataplane
}

// checkWorkload compares the workload of the certificate in use with that of the Dataplane. It logs a new difference.
func (s *Server) checkWorkload(ctx context.Context, id mesh.ID) (m mismatch, differs bool) {
	s.mu.Lock()
	_, p := s.o.View().Proxy(id) // with the lock: of two calls at once, the later one must not have an earlier view
	o := s.observed.of(id)
	if p == nil || meshview.WorkloadMatches(p.Dataplane, o) {
		delete(s.mismatches, id)
		s.mu.Unlock()
		return mismatch{}, false
	}
	m = mismatch{certificate: o.Path, dataplane: p.Dataplane.SPIFFEPath()}
	known := s.remember(id, m)
	s.mu.Unlock()
	if !known {
		s.logMismatch(ctx, id, m)
	}
	return m, true
}

// noteMismatch logs a difference once, since the agent tries again and again.
func (s *Server) noteMismatch(ctx context.Context, id mesh.ID, m mismatch) {
	s.mu.Lock()
	known := s.remember(id, m)
	s.mu.Unlock()
	if !known {
		s.logMismatch(ctx, id, m)
	}
}

// remember reports whether a difference was known. The caller holds s.mu.
func (s *Server) remember(id mesh.ID, m mismatch) (known bool) {
	known = s.mismatches[id] == m
	s.mismatches[id] = m
	return known
}

func (s *Server) logMismatch(ctx context.Context, id mesh.ID, m mismatch) {
	meshName, name := mesh.SplitID(id)
	s.o.Logger.WarnContext(ctx, "certificate is for another workload than the Dataplane: its endpoints are not ready until the agent "+
		"joins with a token for the new workload (sondectl generate dataplane-token)",
		"mesh", meshName, "proxy", name, "certificateWorkload", mesh.WorkloadText(m.certificate), "workload", mesh.WorkloadText(m.dataplane))
}
