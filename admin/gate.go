package admin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/admin/caller"
	"github.com/sonde-mesh/sonde/admin/watch"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/internal/grpcconn"
)

// gate rejects calls without the admin token, unless access accepts their token. It limits the logs of rejections by
// address, but not the calls: guessing the token is hopeless, and a script with an old token would lock out all clients
// at its address.
type gate struct {
	token  [sha256.Size]byte
	access Access // may be nil
	log    *slog.Logger
}

func newGate(token string, access Access, log *slog.Logger) *gate {
	return &gate{token: sha256.Sum256([]byte(token)), access: access, log: log}
}

func (g *gate) unary(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (any, error) {
	name, err := g.check(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	defer grpcconn.Begin(ctx)()
	return next(caller.With(ctx, name), request)
}

func (g *gate) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if info.FullMethod == adminv1.AdminService_Watch_FullMethodName {
		return next(srv, stream) // it checks the rights itself
	}
	name, err := g.check(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	defer grpcconn.Begin(stream.Context())()
	return next(srv, calledStream{stream, caller.With(stream.Context(), name)})
}

// rights returns a function that checks rights of the caller of a method.
func (g *gate) rights(method string) watch.Rights {
	return func(ctx context.Context, needs []adminv1.Right) (watch.Caller, error) {
		return g.checkRights(ctx, method, needs)
	}
}

// check returns the caller, if the caller has the right to call the method.
func (g *gate) check(ctx context.Context, method string) (name string, err error) {
	need, _ := adminv1.RightOf(method)
	c, err := g.checkRights(ctx, method, []adminv1.Right{need})
	if err = cmp.Or(err, c.Errs[need]); err != nil {
		return "", err
	}
	return c.Name, nil
}

// checkRights returns the caller and the rights that the caller lacks. A zero right is one that only the admin token
// has. It compares hashes of admin tokens in constant time, so that neither content nor length can be measured.
func (g *gate) checkRights(ctx context.Context, method string, needs []adminv1.Right) (watch.Caller, error) {
	token := bearer(ctx)
	sent := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(sent[:], g.token[:]) == 1 {
		return watch.Caller{Name: byAdminToken, Shared: true}, nil
	}
	if g.access != nil && strings.Count(token, ".") == 2 { // as in a JWT
		return g.authorize(ctx, token, method, needs)
	}
	g.log.WarnContext(ctx, "admin token refused", "peer", caller.Address(ctx), "method", method)
	return watch.Caller{}, status.Error(codes.Unauthenticated, "the admin token is missing or wrong")
}

// authorize returns the caller that another token identifies, and the rights that the caller lacks.
func (g *gate) authorize(
	ctx context.Context, token, method string, needs []adminv1.Right,
) (c watch.Caller, err error) {
	if slices.Contains(needs, adminv1.Right{}) {
		err = status.Errorf(codes.PermissionDenied, "%s: only callers with the admin token may call it", path.Base(method))
	} else {
		c.Name, c.Errs, err = g.access.Authorize(ctx, token, needs)
	}
	for _, refused := range append(slices.Collect(maps.Values(c.Errs)), err) {
		if refused != nil {
			g.log.WarnContext(ctx, "admin call refused", "peer", caller.Address(ctx), "method", method,
				"err", status.Convert(refused).Message())
		}
	}
	return c, err
}

// bearer returns the bearer token of the call, or "".
func bearer(ctx context.Context) string {
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(values) != 1 {
		return ""
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return token
}
