package join

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/mtls"
	"github.com/sonde-mesh/sonde/internal/grpcconn"
)

// credential is the identity of a caller of Join, and the kind of its proof.
type credential struct {
	identity.Subject
	by string // byToken or byCertificate
}

const (
	byToken       = "token"
	byCertificate = "certificate"
)

// authenticate identifies a caller of Join by its token, or, without a token, by the certificate of its connection. The
// error is a gRPC status; a valid credential is returned even with an error.
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
			c.by, c.Dataplane, c.Mesh, call.Shorten(r.GetName()), call.Shorten(r.GetMesh()))
	}
	if !s.issues.allow(c.ID()) {
		return c, errTooManyIssued
	}
	return c, nil
}

var errTooManyIssued = status.Error(codes.ResourceExhausted, "too many certificates for this proxy: try again later")

// checkToken authenticates a token. The caller's address only takes a turn in the queue: counting bad tokens against an
// address would also block the good tokens from it.
func (s *Server) checkToken(ctx context.Context, token string) (identity.Subject, error) {
	turn, ok := s.tokens.Await(ctx, s.o.Limits.TokenTimeout, grpcconn.Source(ctx), func() {})
	if !ok {
		return identity.Subject{}, fmt.Errorf("%w: %d other tokens are being checked: try again",
			identity.ErrUnavailable, s.o.Limits.TokenChecks)
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

// fits returns a gRPC status if the credential is for another Dataplane of the same name, or for another workload.
func (c credential) fits(d *mesh.Dataplane) error {
	if c.Instance != d.Identity.Instance {
		code := codes.PermissionDenied
		if c.by == "token" {
			code = codes.FailedPrecondition // the view may not have the newest one yet
		}
		return status.Error(code, call.OtherInstance(c.by, c.Subject, d))
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
