package join

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/grpcconn"
)

// Refusal is a rejected Join.
type Refusal struct {
	// Mesh and Dataplane are from the caller's credential if Authenticated. Otherwise they are from the request, which
	// any client can forge, and are cut to 64 bytes.
	Mesh, Dataplane string
	Authenticated   bool
	// Instance is from the credential; it may be empty.
	Instance string
	// Peer is the IP address of the caller.
	Peer string
	// Reason is the error message of the response, Code the name of its gRPC code.
	Reason, Code string
	// Waiting says that the proxy is still unknown, as is normal for a new pod, and that the agent retries soon.
	// Lasting says that the proxy has waited longer than a new pod needs to.
	Waiting, Lasting bool
}

// refuse logs a Join without a valid credential for the requested proxy, and reports it to Options.Refused.
func (s *Server) refuse(ctx context.Context, c credential, r *agentv1.JoinRequest, peer string, err error) {
	refusal := Refusal{
		Mesh: call.Shorten(r.GetMesh()), Dataplane: call.Shorten(r.GetName()), Peer: peer,
		Reason: status.Convert(err).Message(),
	}
	s.o.Logger.WarnContext(ctx, "join refused", "mesh", refusal.Mesh, "proxy", refusal.Dataplane, "peer", peer,
		"reason", refusal.Reason)
	if c.Mesh != "" {
		refusal.Mesh, refusal.Dataplane, refusal.Instance, refusal.Authenticated = c.Mesh, c.Dataplane, c.Instance, true
	}
	if s.refusals.Allow(grpcconn.Source(ctx)) {
		s.tell(refusal, status.Code(err))
	}
}

// tell reports a rejection to Options.Refused, unless the control plane rather than the caller is the cause.
func (s *Server) tell(r Refusal, code codes.Code) {
	switch code {
	case codes.Internal, codes.Unavailable, codes.ResourceExhausted:
	default:
		r.Waiting, r.Code = code == codes.FailedPrecondition, code.String()
		s.o.Refused(r)
	}
}

// waits records, logs and reports that a proxy with a valid credential could not join. Errors of the control plane
// itself are logged elsewhere.
func (s *Server) waits(ctx context.Context, c credential, process, peer string, err error) {
	code, reason := status.Code(err), status.Convert(err).Message()
	if code == codes.Internal || code == codes.Unavailable {
		return
	}
	news, lasts, recorded := s.waiting.add(c.ID(), refused{process, code == codes.AlreadyExists}, reason, s.o.Now())
	if news && recorded {
		s.o.Waits(c.ID())
	}
	lasts = lasts && code == codes.FailedPrecondition // other rejections are reported at once
	if !news && !lasts || !recorded && !s.refusals.Allow(grpcconn.Source(ctx)) {
		return
	}
	log := s.o.Logger.With("mesh", c.Mesh, "proxy", c.Dataplane, "peer", peer, "reason", reason)
	if code == codes.FailedPrecondition {
		log.WarnContext(ctx, "proxy waits for its Dataplane")
	} else {
		log.WarnContext(ctx, "join refused")
	}
	s.tell(Refusal{Mesh: c.Mesh, Dataplane: c.Dataplane, Authenticated: true, Instance: c.Instance, Peer: peer,
		Reason: reason, Lasting: lasts}, code)
}
