package join

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/skew"
	"github.com/sonde-mesh/sonde/meshview"
)

// Join issues a certificate to a proxy. Errors are gRPC statuses.
func (s *Server) Join(ctx context.Context, r *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	response, err := s.tryJoin(ctx, r)
	s.metrics.joins.WithLabelValues(status.Code(err).String()).Inc()
	return response, err
}

// tryJoin calls join, and records and logs a rejection.
func (s *Server) tryJoin(ctx context.Context, r *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	address := call.Address(ctx)
	c, err := s.authenticate(ctx, r)
	if err != nil {
		s.refuse(ctx, c, r, address, err)
		return nil, err
	}
	response, err := s.join(ctx, c, r)
	if err != nil {
		s.waits(ctx, c, r.GetInstance(), address, err)
		return nil, err
	}
	s.Joined(c.ID(), r.GetInstance())
	return response, nil
}

// join issues a certificate to a proxy with a valid credential. The error is a gRPC status.
func (s *Server) join(ctx context.Context, c credential, r *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	log := s.o.Logger.With("peer", call.Address(ctx), "mesh", c.Mesh, "proxy", c.Dataplane, "by", c.by)
	m, p, err := call.Proxy(s.o.View(), c.Mesh, c.Dataplane)
	if status.Code(err) == codes.FailedPrecondition {
		if why := s.o.Absent(c.Subject); why != "" {
			err = status.Error(codes.FailedPrecondition, why)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := c.fits(p.Dataplane); err != nil {
		return nil, err
	}
	if err := call.CheckProcess(r.GetInstance()); err != nil {
		return nil, err
	}
	if err := s.o.CheckDuplicate(ctx, p.ID(), r.GetInstance(), call.Address(ctx)); err != nil {
		return nil, err
	}
	sidecar, err := sidecarOf(r)
	if err != nil {
		return nil, err
	}
	bootstrap, err := s.o.Bootstrap(p, sidecar)
	if err != nil {
		return nil, call.Internal(ctx, log, "make bootstrap", err)
	}
	if err := s.o.Observed.ExpectListeners(p.ID()); err != nil {
		return nil, call.Internal(ctx, log, "expect listeners", err)
	}
	if err := s.o.Observed.ExpectApplications(p.Dataplane); err != nil {
		return nil, call.Internal(ctx, log, "expect applications", err)
	}
	issued, err := s.issue(ctx, log, m, p, r.GetCsr())
	if err != nil {
		return nil, err
	}
	s.o.Observed.Issued(p.ID())
	log.InfoContext(ctx, "proxy joined", "serial", issued.Serial, "expires", issued.NotAfter,
		"version", call.Shorten(r.GetVersion().GetSonde()), "envoyVersion", call.Shorten(r.GetVersion().GetEnvoy()))
	s.checkSkew(ctx, log, call.Shorten(r.GetVersion().GetSonde()))
	return &agentv1.JoinResponse{Identity: identityOf(issued), Bootstrap: bootstrap}, nil
}

// checkSkew warns about an unsupported agent version, at most as often as a proxy may join.
func (s *Server) checkSkew(ctx context.Context, log *slog.Logger, version string) {
	kind, odd := map[skew.Skew]string{skew.TooOld: "too-old", skew.TooNew: "too-new"}[skew.Of(version, s.o.Version)]
	if !odd {
		return
	}
	s.metrics.unsupported.WithLabelValues(kind).Inc()
	log.WarnContext(ctx, "agent version is not supported", "reason", skew.Problem(version, s.o.Version))
}

// issue issues a certificate for a proxy of the view. The error is a gRPC status.
func (s *Server) issue(
	ctx context.Context, log *slog.Logger, m *meshview.Mesh, p *meshview.Proxy, csr []byte,
) (identity.Certificate, error) {
	backend := m.Spec.Backend()
	if err := s.o.Authority.Ensure(ctx, m.Spec.Name, backend.CAValidity()); err != nil {
		return identity.Certificate{}, call.Internal(ctx, log, "make CA", err)
	}
	issued, err := s.o.Authority.Issue(ctx, identity.Request{
		Subject: identity.SubjectOf(p.Dataplane), CSR: csr, Validity: backend.CertValidity(),
	})
	if errors.Is(err, identity.ErrInvalidRequest) {
		return identity.Certificate{}, status.Error(codes.InvalidArgument, err.Error())
	}
	if err != nil {
		return identity.Certificate{}, call.Internal(ctx, log, "issue certificate", err)
	}
	s.o.Observed.ObserveIdentity(p.ID())
	return issued, nil
}

func identityOf(c identity.Certificate) *agentv1.Identity {
	return &agentv1.Identity{CertificateChain: c.Chain, Bundle: call.Bundle(c.Bundle)}
}
