package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"hash/maphash"
	"log/slog"
	"net/netip"
	"strings"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/internal/connlimit"
	"github.com/sonde-mesh/sonde/internal/grpcconn"
)

const (
	// Wrong tokens that one address may send: a burst, then a number per second.
	wrongTokenBurst = 10
	wrongTokenRate  = rate.Limit(1)
	// All addresses share this many limiters, so that their number does not matter for memory.
	limiters = 1024
)

// gate refuses calls without the admin token. Wrong tokens are limited by address, so that they cannot fill the log. The
// right token is never refused: it is too long to be guessed, and otherwise a script with an old token would lock out
// all clients at the same address.
type gate struct {
	token [sha256.Size]byte
	log   *slog.Logger
	seed  maphash.Seed
	wrong [limiters]*rate.Limiter
}

func newGate(token string, log *slog.Logger) *gate {
	g := &gate{token: sha256.Sum256([]byte(token)), log: log, seed: maphash.MakeSeed()}
	for i := range g.wrong {
		g.wrong[i] = rate.NewLimiter(wrongTokenRate, wrongTokenBurst)
	}
	return g
}

func (g *gate) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := g.check(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	defer grpcconn.Begin(ctx)()
	return next(ctx, request)
}

func (g *gate) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := g.check(stream.Context(), info.FullMethod); err != nil {
		return err
	}
	defer grpcconn.Begin(stream.Context())()
	return next(srv, stream)
}

// check compares hashes of the tokens in constant time, so that neither content nor length can be measured.
func (g *gate) check(ctx context.Context, method string) error {
	sent := sha256.Sum256([]byte(bearer(ctx)))
	if subtle.ConstantTimeCompare(sent[:], g.token[:]) == 1 {
		return nil
	}
	if !g.limiter(ctx).Allow() {
		return status.Error(codes.ResourceExhausted, "the admin token is missing or wrong, once too often from this address")
	}
	g.log.WarnContext(ctx, "admin token refused", "peer", peerAddress(ctx), "method", method)
	return status.Error(codes.Unauthenticated, "the admin token is missing or wrong")
}

// limiter returns the limiter of the caller's address.
func (g *gate) limiter(ctx context.Context) *rate.Limiter {
	var source netip.Prefix
	if p, ok := peer.FromContext(ctx); ok {
		source = connlimit.SourceOf(p.Addr)
	}
	return g.wrong[maphash.Comparable(g.seed, source)%limiters]
}

// bearer returns the bearer token of the call, "" if there is none.
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

func peerAddress(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}
