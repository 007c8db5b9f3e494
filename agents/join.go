package agents

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
)

// Join implements agentv1.AgentServiceServer.
func (s *Server) Join(ctx context.Context, r *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	response, err := s.join(ctx, r)
	s.metrics.joins.WithLabelValues(status.Code(err).String()).Inc()
	return response, err
}

func (s *Server) join(ctx context.Context, r *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	address := peerAddress(ctx)
	if !s.joins.allow(address) {
		return nil, status.Error(codes.ResourceExhausted, "too many joins from this address: try again later")
	}
	log := s.o.Logger.With("peer", address)
	by, authorize := "token", s.byToken
	if _, err := identity.PeerFromContext(ctx); err == nil && r.GetToken() == "" {
		by, authorize = "certificate", s.byCertificate
	}
	m, p, err := authorize(ctx, log, r)
	if err != nil {
		return nil, err
	}
	log = log.With("mesh", p.Dataplane.Mesh, "proxy", p.Dataplane.Name, "by", by)
	controlPlane := r.GetControlPlaneAddress()
	if _, _, err := net.SplitHostPort(controlPlane); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "control_plane_address: %q: must be host:port", shorten(controlPlane))
	}
	drainTime, err := drainTimeOf(r)
	if err != nil {
		return nil, err
	}
	bootstrap, err := s.o.Bootstrap(p, controlPlane, drainTime)
	if err != nil {
		return nil, internal(ctx, log, "make bootstrap", err)
	}
	issued, err := s.issue(ctx, log, m, p, r.GetCsr())
	if err != nil {
		return nil, err
	}
	log.InfoContext(ctx, "proxy joined", "serial", issued.Serial, "expires", issued.NotAfter,
		"version", shorten(r.GetVersion().GetSonde()), "envoyVersion", shorten(r.GetVersion().GetEnvoy()))
	return &agentv1.JoinResponse{Identity: identityOf(issued), Bootstrap: bootstrap}, nil
}

// drainTimeOf returns the drain time of a request, or its default. The error is a gRPC status.
func drainTimeOf(r *agentv1.JoinRequest) (time.Duration, error) {
	if r.GetDrainTime() == nil {
		return mesh.DefaultDrainTime, nil
	}
	if d := r.GetDrainTime().AsDuration(); r.GetDrainTime().IsValid() && d >= 0 && d <= mesh.MaxDrainTime {
		return d, nil
	}
	return 0, status.Errorf(codes.InvalidArgument, "drain_time: %s: must be from 0s to %s", r.GetDrainTime().AsDuration(), mesh.MaxDrainTime)
}

// byToken finds the proxy that the token of a request is for. The error is a gRPC status.
func (s *Server) byToken(ctx context.Context, log *slog.Logger, r *agentv1.JoinRequest) (*meshview.Mesh, *meshview.Proxy, error) {
	token, err := s.o.Authority.VerifyToken(r.GetToken(), r.GetMesh(), r.GetName())
	switch {
	case errors.Is(err, identity.ErrTokenOfAnother):
		log.WarnContext(ctx, "join refused", "err", err)
		return nil, nil, status.Error(codes.PermissionDenied, err.Error())
	case err != nil:
		log.WarnContext(ctx, "join refused", "err", err)
		return nil, nil, status.Error(codes.Unauthenticated, err.Error())
	}
	m, p, err := s.proxy(token.Mesh, token.Dataplane)
	if err != nil {
		return nil, nil, err
	}
	if want := p.Dataplane.Workload(); token.Workload != want {
		log.WarnContext(ctx, "join refused: the token is for another workload", "mesh", token.Mesh, "proxy", token.Dataplane,
			"workload", want, "tokenWorkload", token.Workload)
		return nil, nil, status.Errorf(codes.PermissionDenied, "the token is for workload %q, the Dataplane has workload %q", token.Workload, want)
	}
	return m, p, nil
}

// byCertificate finds the proxy that the certificate of the connection is for. The error is a gRPC status.
func (s *Server) byCertificate(ctx context.Context, log *slog.Logger, r *agentv1.JoinRequest) (*meshview.Mesh, *meshview.Proxy, error) {
	caller, err := identity.PeerFromContext(ctx)
	if err != nil {
		return nil, nil, status.Error(codes.Unauthenticated, err.Error())
	}
	if caller.Mesh != r.GetMesh() || caller.Dataplane != r.GetName() {
		log.WarnContext(ctx, "join refused: the certificate is for another proxy", "mesh", caller.Mesh, "proxy", caller.Dataplane)
		return nil, nil, status.Errorf(codes.PermissionDenied, "the certificate is for dataplane %q of mesh %q, not %q of %q",
			caller.Dataplane, caller.Mesh, shorten(r.GetName()), shorten(r.GetMesh()))
	}
	return s.renewable(ctx, log, caller)
}

// renewable finds the proxy of a caller that wants another certificate for the one that it has. The error is a gRPC status.
func (s *Server) renewable(ctx context.Context, log *slog.Logger, caller identity.Peer) (*meshview.Mesh, *meshview.Proxy, error) {
	if !s.renews.allow(caller.ID()) {
		return nil, nil, status.Error(codes.ResourceExhausted, "too many renewals of this proxy: try again later")
	}
	m, p, err := s.proxy(caller.Mesh, caller.Dataplane)
	if err != nil {
		return nil, nil, err
	}
	// Another workload is another identity, which takes a token.
	if want := p.Dataplane.SPIFFEID(s.o.Authority.TrustDomain()); caller.SPIFFEID != want {
		log.WarnContext(ctx, "renewal refused: the workload has changed", "mesh", caller.Mesh, "proxy", caller.Dataplane,
			"spiffeID", want, "certificateSpiffeID", caller.SPIFFEID)
		return nil, nil, status.Errorf(codes.PermissionDenied, "the certificate is for %q, the Dataplane is now %q: join again with a token",
			caller.SPIFFEID, want)
	}
	return m, p, nil
}

// Renew implements agentv1.AgentServiceServer.
func (s *Server) Renew(ctx context.Context, r *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	response, err := s.renew(ctx, r)
	s.metrics.renewals.WithLabelValues(status.Code(err).String()).Inc()
	return response, err
}

func (s *Server) renew(ctx context.Context, r *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	caller, err := identity.PeerFromContext(ctx)
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	m, p, err := s.renewable(ctx, s.o.Logger, caller)
	if err != nil {
		return nil, err
	}
	log := s.o.Logger.With("mesh", caller.Mesh, "proxy", caller.Dataplane)
	issued, err := s.issue(ctx, log, m, p, r.GetCsr())
	if err != nil {
		return nil, err
	}
	log.InfoContext(ctx, "certificate renewed", "serial", issued.Serial, "expires", issued.NotAfter)
	return &agentv1.RenewResponse{Identity: identityOf(issued)}, nil
}

// proxy finds a proxy in the view. The error is a gRPC status.
func (s *Server) proxy(meshName, dataplane string) (*meshview.Mesh, *meshview.Proxy, error) {
	v := s.o.View()
	if v == nil {
		return nil, nil, status.Error(codes.Unavailable, "the control plane has no view of the mesh yet: try again")
	}
	m := v.Mesh(meshName)
	if m == nil {
		return nil, nil, status.Errorf(codes.FailedPrecondition, "mesh %q is not known (yet)", meshName)
	}
	p := m.Proxies[dataplane]
	if p == nil {
		return nil, nil, status.Errorf(codes.FailedPrecondition, "dataplane %q of mesh %q is not known (yet)", dataplane, meshName)
	}
	return m, p, nil
}

// issue issues a certificate for a proxy of the view. The error is a gRPC status.
func (s *Server) issue(ctx context.Context, log *slog.Logger, m *meshview.Mesh, p *meshview.Proxy, csr []byte) (identity.Certificate, error) {
	backend := m.Spec.Backend()
	if err := s.o.Authority.Ensure(m.Spec.Name, backend.CALife()); err != nil {
		return identity.Certificate{}, internal(ctx, log, "make CA", err)
	}
	issued, err := s.o.Authority.Issue(identity.Request{
		Mesh:      m.Spec.Name,
		Dataplane: p.Dataplane.Name,
		Workload:  p.Dataplane.Workload(),
		CSR:       csr,
		Life:      backend.CertLife(),
	})
	if errors.Is(err, identity.ErrRequest) {
		return identity.Certificate{}, status.Error(codes.InvalidArgument, err.Error())
	}
	if err != nil {
		return identity.Certificate{}, internal(ctx, log, "issue certificate", err)
	}
	return issued, nil
}

// internal logs an error that is not for the agent, and returns the status for the agent.
func internal(ctx context.Context, log *slog.Logger, what string, err error) error {
	log.ErrorContext(ctx, "call of an agent not served", "step", what, "err", err)
	return status.Errorf(codes.Internal, "%s: see the log of the control plane", what)
}

func identityOf(c identity.Certificate) *agentv1.Identity {
	return &agentv1.Identity{CertificateChain: c.Chain, Bundle: bundleOf(c.Bundle)}
}

func bundleOf(b identity.Bundle) *agentv1.Bundle {
	return &agentv1.Bundle{Id: b.ID, Roots: b.Roots}
}

// peerAddress returns the caller's IP address.
func peerAddress(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return p.Addr.String()
	}
	return host
}

// maxText is how much of an agent's strings is kept in logs and in memory, in bytes.
const maxText = 64

func shorten(s string) string { return s[:min(len(s), maxText)] }
