package agents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/mtls"
	"github.com/sonde-mesh/sonde/internal/connlimit"
	"github.com/sonde-mesh/sonde/internal/cut"
	"github.com/sonde-mesh/sonde/meshview"
)

// Join implements agentv1.AgentServiceServer.
func (s *Server) Join(ctx context.Context, r *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	response, err := s.tryJoin(ctx, r)
	s.metrics.joins.WithLabelValues(status.Code(err).String()).Inc()
	return response, err
}

// tryJoin records and logs a refusal.
func (s *Server) tryJoin(ctx context.Context, r *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	address := peerAddress(ctx)
	c, err := s.authenticate(ctx, r)
	if err != nil {
		s.refuse(ctx, c, r, address, err)
		return nil, err
	}
	response, err := s.join(ctx, c, r)
	if err != nil {
		s.waits(ctx, c, address, err)
		return nil, err
	}
	s.waiting.remove(c.ID())
	return response, nil
}

// credential is who a caller of Join is, and how it has shown that.
type credential struct {
	identity.Subject
	by string // byToken or byCertificate
}

const (
	byToken       = "token"
	byCertificate = "certificate"
)

// authenticate finds out who calls Join: by its token, or without one by the certificate of the connection. The error is a
// gRPC status; the credential is that of the caller nevertheless, if it has a valid one.
func (s *Server) authenticate(ctx context.Context, r *agentv1.JoinRequest) (credential, error) {
	c := credential{by: byToken}
	caller, err := mtls.PeerFromContext(ctx)
	if err == nil && r.GetToken() == "" {
		c = credential{caller.Subject, byCertificate}
	} else if c.Subject, err = s.checkToken(ctx, r.GetToken()); err != nil {
		return credential{}, tokenStatus(err)
	}
	if c.Mesh != r.GetMesh() || c.Dataplane != r.GetName() {
		return c, status.Errorf(codes.PermissionDenied, "the %s is for dataplane %q of mesh %q, not %q of %q",
			c.by, c.Dataplane, c.Mesh, shorten(r.GetName()), shorten(r.GetMesh()))
	}
	if !s.issues.allow(c.ID()) {
		return c, errTooManyIssued
	}
	return c, nil
}

var errTooManyIssued = status.Error(codes.ResourceExhausted, "too many certificates for this proxy: try again later")

// checkToken finds out whom a token identifies. Nothing is counted against the caller's address but the turn: bad tokens must not use up what
// good ones from there need.
func (s *Server) checkToken(ctx context.Context, token string) (identity.Subject, error) {
	turn, ok := s.tokens.Await(s.o.tokenTimeout, peerSource(ctx), func() {})
	if !ok {
		return identity.Subject{}, fmt.Errorf("%w: %d other tokens are being checked: try again", identity.ErrUnavailable, s.o.tokenChecks)
	}
	defer turn.Leave()
	return s.o.Tokens.Authenticate(ctx, token) //nolint:wrapcheck // the caller makes it a status
}

// tokenStatus returns the gRPC status of an error of the Authenticator.
func tokenStatus(err error) error {
	switch {
	case errors.Is(err, identity.ErrUnavailable):
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(err, identity.ErrNotKnown):
		return status.Error(codes.FailedPrecondition, err.Error())
	default:
		return status.Error(codes.Unauthenticated, err.Error())
	}
}

// join lets a proxy join that has a valid credential. The error is a gRPC status.
func (s *Server) join(ctx context.Context, c credential, r *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	log := s.o.Logger.With("peer", peerAddress(ctx), "mesh", c.Mesh, "proxy", c.Dataplane, "by", c.by)
	m, p, err := s.proxy(c.Mesh, c.Dataplane)
	if err != nil {
		return nil, err
	}
	if err := c.fits(p.Dataplane); err != nil {
		return nil, err
	}
	if err := checkProcess(r.GetInstance()); err != nil {
		return nil, err
	}
	if err := s.checkDuplicate(ctx, p.ID(), r.GetInstance()); err != nil {
		return nil, err
	}
	sidecar, err := sidecarOf(r)
	if err != nil {
		return nil, err
	}
	bootstrap, err := s.o.Bootstrap(p, sidecar)
	if err != nil {
		return nil, internal(ctx, log, "make bootstrap", err)
	}
	if err := s.expectListeners(p.ID()); err != nil {
		return nil, internal(ctx, log, "expect listeners", err)
	}
	if err := s.expectApplications(p.Dataplane); err != nil {
		return nil, internal(ctx, log, "expect applications", err)
	}
	issued, err := s.issue(ctx, log, m, p, r.GetCsr())
	if err != nil {
		return nil, err
	}
	log.InfoContext(ctx, "proxy joined", "serial", issued.Serial, "expires", issued.NotAfter,
		"version", shorten(r.GetVersion().GetSonde()), "envoyVersion", shorten(r.GetVersion().GetEnvoy()))
	return &agentv1.JoinResponse{Identity: identityOf(issued), Bootstrap: bootstrap}, nil
}

// fits returns a gRPC status if the credential is not for this Dataplane, but for another one of its name or for another workload.
func (c credential) fits(d *mesh.Dataplane) error {
	if c.Instance != d.Identity.Instance {
		code := codes.PermissionDenied
		if c.by == "token" {
			code = codes.FailedPrecondition // the view may not have the newest one yet
		}
		return status.Error(code, otherInstance(c.by, c.Subject, d))
	}
	want := d.SPIFFEPath()
	if c.Path == want {
		return nil
	}
	help := "the agent needs another token (sondectl generate dataplane-token)"
	if d.Identity.Path != "" {
		help = "the agent needs a token of its own"
	}
	return status.Errorf(codes.PermissionDenied, "the %s is for workload %q, the Dataplane has workload %q: %s", c.by,
		mesh.WorkloadText(c.Path), mesh.WorkloadText(want), help)
}

// Limits of the memory of agent and Envoy: anything else is a mistake.
const (
	minMemory = 16 << 20
	maxMemory = 1 << 50
)

// sidecarOf returns what a request says of the sidecar, with defaults. The error is a gRPC status.
func sidecarOf(r *agentv1.JoinRequest) (Sidecar, error) {
	if at := r.GetControlPlaneAddress(); !isAddress(at) {
		return Sidecar{}, status.Errorf(codes.InvalidArgument, "control_plane_address: %q: must be host:port, the port from 1 to 65535", shorten(at))
	}
	drainTime, err := drainTimeOf(r)
	if err != nil {
		return Sidecar{}, err
	}
	memory := cmp.Or(r.GetMemoryBytes(), uint64(mesh.DefaultSidecarMemory))
	if memory < minMemory || memory > maxMemory {
		return Sidecar{}, status.Errorf(codes.InvalidArgument, "memory_bytes: %d: must be from %d to %d, or 0 for %d",
			memory, minMemory, uint64(maxMemory), uint64(mesh.DefaultSidecarMemory))
	}
	return Sidecar{ControlPlane: r.GetControlPlaneAddress(), DrainTime: drainTime, Memory: memory}, nil
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
	p := m.Proxies.Get(dataplane)
	if p == nil {
		return nil, nil, status.Errorf(codes.FailedPrecondition, "dataplane %q of mesh %q is not known (yet)", dataplane, meshName)
	}
	return m, p, nil
}

// issue issues a certificate for a proxy of the view. The error is a gRPC status.
func (s *Server) issue(ctx context.Context, log *slog.Logger, m *meshview.Mesh, p *meshview.Proxy, csr []byte) (identity.Certificate, error) {
	backend := m.Spec.Backend()
	if err := s.o.Authority.Ensure(ctx, m.Spec.Name, backend.CAValidity()); err != nil {
		return identity.Certificate{}, internal(ctx, log, "make CA", err)
	}
	issued, err := s.o.Authority.Issue(ctx, identity.Request{
		Subject: identity.SubjectOf(p.Dataplane), CSR: csr, Validity: backend.CertValidity(),
	})
	if errors.Is(err, identity.ErrInvalidRequest) {
		return identity.Certificate{}, status.Error(codes.InvalidArgument, err.Error())
	}
	if err != nil {
		return identity.Certificate{}, internal(ctx, log, "issue certificate", err)
	}
	s.observeIdentity(p.ID())
	return issued, nil
}

// internal logs an error that is not for the agent, and returns the status for the agent.
func internal(ctx context.Context, log *slog.Logger, what string, err error) error {
	log.ErrorContext(ctx, "agent request failed", "step", what, "err", err)
	return status.Errorf(codes.Internal, "%s: see the log of the control plane", what)
}

func identityOf(c identity.Certificate) *agentv1.Identity {
	return &agentv1.Identity{CertificateChain: c.Chain, Bundle: bundleOf(c.Bundle)}
}

func bundleOf(b identity.Bundle) *agentv1.Bundle {
	return &agentv1.Bundle{Id: b.ID, Roots: b.Roots}
}

// isAddress reports whether an address is one that Envoy can connect to: host:port.
func isAddress(address string) bool {
	host, port, err := net.SplitHostPort(address)
	number, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || number == 0 || net.JoinHostPort(host, port) != address {
		return false
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Zone() == ""
	}
	return len(host) <= maxHost && hostName.MatchString(host)
}

// maxHost is the most bytes of a DNS name (RFC 1035 §2.3.4).
const maxHost = 253

// hostName matches a name that DNS may have, and no IPv6 address.
var hostName = regexp.MustCompile(`^[a-zA-Z0-9_]([-a-zA-Z0-9_.]*[a-zA-Z0-9_.])?$`)

// peerSource returns for whom the caller counts.
func peerSource(ctx context.Context) netip.Prefix {
	if p, ok := peer.FromContext(ctx); ok {
		return connlimit.SourceOf(p.Addr)
	}
	return netip.Prefix{}
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

func shorten(s string) string { return cut.Text(s, maxText) }
