package join

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/grpcconn"
)

// Refusal is a Join that was refused.
type Refusal struct {
	// Mesh and Dataplane of the caller's credential if Authenticated, else what it has asked for, cut to 64 bytes: then any
	// client may have called.
	Mesh, Dataplane string
	Authenticated   bool
	// Instance of the credential, "" if there is none or it does not name one.
	Instance string
	// Peer is the IP address of the caller.
	Peer string
	// Reason is what the caller was told. Code is its class, the name of a gRPC code.
	Reason, Code string
	// Waiting says that the proxy is not known (yet): the agent tries again soon, as each new pod's may have to. Lasting says that it has
	// waited for longer than they do.
	Waiting, Lasting bool
}

// refuse logs a caller of Join that is not whom it says, and tells of it.
func (s *Server) refuse(ctx context.Context, c credential, r *agentv1.JoinRequest, peer string, err error) {
	refusal := Refusal{
		Mesh: call.Shorten(r.GetMesh()), Dataplane: call.Shorten(r.GetName()), Peer: peer, Reason: status.Convert(err).Message(),
	}
	s.o.Logger.WarnContext(ctx, "join refused", "mesh", refusal.Mesh, "proxy", refusal.Dataplane, "peer", peer, "reason", refusal.Reason)
	if c.Mesh != "" {
		refusal.Mesh, refusal.Dataplane, refusal.Instance, refusal.Authenticated = c.Mesh, c.Dataplane, c.Instance, true
	}
	if s.refusals.Allow(grpcconn.Source(ctx)) {
		s.tell(refusal, status.Code(err))
	}
}

// tell passes a refusal on, unless it says more about the control plane than about the caller.
func (s *Server) tell(r Refusal, code codes.Code) {
	switch code {
	case codes.Internal, codes.Unavailable, codes.ResourceExhausted:
	default:
		r.Waiting, r.Code = code == codes.FailedPrecondition, code.String()
		s.o.Refused(r)
	}
}

// waits records and logs that a proxy with a valid credential could not join, and tells of it. Errors of the control plane itself
// are logged elsewhere.
func (s *Server) waits(ctx context.Context, c credential, process, peer string, err error) {
	code, reason := status.Code(err), status.Convert(err).Message()
	if code == codes.Internal || code == codes.Unavailable {
		return
	}
	news, lasts, recorded := s.waiting.add(c.ID(), refused{process, code == codes.AlreadyExists}, reason, s.o.Now())
	if news && recorded {
		s.o.Waits(c.ID())
	}
	lasts = lasts && code == codes.FailedPrecondition // another refusal is told of at once
	if !news && !lasts || !recorded && !s.refusals.Allow(grpcconn.Source(ctx)) {
		return
	}
	log := s.o.Logger.With("mesh", c.Mesh, "proxy", c.Dataplane, "peer", peer, "reason", reason)
	if code == codes.FailedPrecondition {
		log.WarnContext(ctx, "proxy waits for its Dataplane")
	} else {
		log.WarnContext(ctx, "join refused")
	}
	s.tell(Refusal{Mesh: c.Mesh, Dataplane: c.Dataplane, Authenticated: true, Instance: c.Instance, Peer: peer, Reason: reason, Lasting: lasts}, code)
}
