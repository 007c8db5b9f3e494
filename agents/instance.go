package agents

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
)

// checkInstance returns a gRPC status if a session is not one of the proxy that the view has under its name, but of an earlier or
// a later one. A proxy that is not in the view may have a session.
func (s *Server) checkInstance(who identity.Subject) error {
	_, p := s.o.View().Proxy(who.ID())
	if p == nil || p.Dataplane.Identity.Instance == who.Instance {
		return nil
	}
	return status.Error(codes.PermissionDenied, otherInstance("certificate", who, p.Dataplane))
}

// otherInstance says that a credential is not of the Dataplane that has its name.
func otherInstance(credential string, who identity.Subject, d *mesh.Dataplane) string {
	return "the " + credential + " is for " + instanceText(who.Instance) + " of dataplane \"" + who.Dataplane + "\", the current one is " +
		instanceText(d.Identity.Instance)
}

func instanceText(instance string) string {
	if instance == "" {
		return "one without a UID"
	}
	return "the one with UID " + instance
}

// replaceInstance ends the session of an earlier proxy of the same name, and forgets what is known of that.
func (s *Server) replaceInstance(ctx context.Context, p *meshview.Proxy) {
	now := identity.SubjectOf(p.Dataplane)
	id := now.ID()
	s.mu.Lock()
	sess := s.sessions[id]
	other := sess != nil && sess.peer.Instance != now.Instance
	if other {
		sess.replace()
	}
	s.mu.Unlock()
	if !s.o.Authority.Replaced(now) && !other {
		return
	}
	s.o.Logger.InfoContext(ctx, "proxy replaced by another one of its name", "mesh", now.Mesh, "proxy", now.Dataplane, "instance", now.Instance)
	if err := s.drains.remove(id); err != nil {
		s.o.Logger.ErrorContext(ctx, "drain record not removed", "mesh", now.Mesh, "proxy", now.Dataplane, "err", err)
	}
	s.observeDraining(id, false)
	s.observeIdentity(id)
}
