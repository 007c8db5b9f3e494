package join

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents/call"
	"github.com/sonde-mesh/sonde/agents/observed"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/identity/mtls"
)

// Renew renews the certificate of a proxy. Errors are gRPC statuses.
func (s *Server) Renew(ctx context.Context, r *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	response, err := s.renew(ctx, r)
	s.metrics.renewals.WithLabelValues(status.Code(err).String()).Inc()
	return response, err
}

func (s *Server) renew(ctx context.Context, r *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	caller, err := mtls.PeerFromContext(ctx)
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	if !s.issues.allow(caller.ID()) {
		return nil, errTooManyIssued
	}
	m, p, err := call.Proxy(s.o.View(), caller.Mesh, caller.Dataplane)
	if err != nil {
		return nil, err
	}
	if p.Dataplane.Identity.Instance != caller.Instance {
		return nil, status.Error(codes.PermissionDenied, call.OtherInstance("certificate", caller.Subject, p.Dataplane))
	}
	// A certificate cannot be renewed for another workload: the agent has to join with a token.
	if want := p.Dataplane.SPIFFEID(s.o.Authority.TrustDomain()); caller.SPIFFEID != want {
		s.o.Observed.NoteMismatch(ctx, caller.ID(), observed.Mismatch{Certificate: caller.Path,
			Dataplane: p.Dataplane.SPIFFEPath()})
		return nil, status.Errorf(codes.PermissionDenied,
			"the certificate is for %q, the Dataplane is now %q: join again with a token",
			caller.SPIFFEID, want)
	}
	log := s.o.Logger.With("mesh", caller.Mesh, "proxy", caller.Dataplane)
	issued, err := s.issue(ctx, log, m, p, r.GetCsr())
	if err != nil {
		return nil, err
	}
	s.Joined(caller.ID(), "") // a RenewRequest does not name the process
	log.InfoContext(ctx, "certificate renewed", "serial", issued.Serial, "expires", issued.NotAfter)
	return &agentv1.RenewResponse{Identity: identityOf(issued)}, nil
}
