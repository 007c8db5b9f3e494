// Package access authenticates and authorizes callers of the admin API that have a service-account token, with a
// TokenReview and a SubjectAccessReview for the right that the call needs.
package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/tokenreview"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/connlimit"
	"github.com/sonde-mesh/sonde/internal/cut"
	"github.com/sonde-mesh/sonde/internal/grpcconn"
	"github.com/sonde-mesh/sonde/internal/sourcelimit"
)

const (
	// validity is how long an answer of the API server is cached, from the time of the request. It is the same as for
	// API servers' own delegated authorization. Only permissions are cached, so that a newly granted right takes effect
	// at once. Source: k8s.io/apiserver pkg/server/options/authentication.go.
	validity = 10 * time.Second
	// remembered is the number of cached permissions.
	remembered = 512
	// Token checks per source: a burst, then a rate per second. A client can send any number of tokens that look valid
	// until the API server checks them.
	checksBurst     = 20
	checksPerSecond = rate.Limit(5)
	// checksAtOnce is the limit for all sources, which share it equally.
	checksAtOnce = 16
	// checkTimeout bounds one check: the wait for its turn, and all requests.
	checkTimeout = 5 * time.Second
	// maxReason bounds the API server's reason in an error, in bytes.
	maxReason = 300
)

// Rights is the API of SubjectAccessReviews. authorizationv1.SubjectAccessReviewInterface of client-go implements it.
type Rights interface {
	Create(ctx context.Context, r *authorizationv1.SubjectAccessReview,
		o metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error)
}

// Options of an Authorizer.
type Options struct {
	// Tokens and Rights are required. Their client limits the rate of requests.
	Tokens tokenreview.Reviews
	Rights Rights
}

// Authorizer implements admin.Access. It is safe for concurrent use.
type Authorizer struct {
	o       Options
	allowed *cache.LRUExpireCache // usernames by permission
	checks  *sourcelimit.Limiter
	turns   *connlimit.Places[netip.Prefix]
}

// hash identifies a token without keeping it.
type hash [sha256.Size]byte

// permission is the key of a cached permission.
type permission struct {
	token hash
	right adminv1.Right
}

// New returns an Authorizer.
func New(o Options) (*Authorizer, error) {
	if o.Tokens == nil || o.Rights == nil {
		return nil, errors.New("access: Options.Tokens and Options.Rights are required")
	}
	return &Authorizer{
		o: o, allowed: cache.NewLRUExpireCache(remembered),
		checks: sourcelimit.New(checksPerSecond, checksBurst),
		turns:  connlimit.NewPlaces[netip.Prefix](connlimit.Options{Total: checksAtOnce}),
	}, nil
}

// Authorize implements admin.Access. All rights cost one check of the token.
func (a *Authorizer) Authorize(
	ctx context.Context, token string, needs []adminv1.Right,
) (caller string, errs map[adminv1.Right]error, err error) {
	of := hash(sha256.Sum256([]byte(token)))
	var unknown []adminv1.Right
	for _, need := range needs {
		if user, ok := a.allowed.Get(permission{of, need}); ok {
			caller = user.(string) //nolint:forcetypeassert // as it was added
		} else {
			unknown = append(unknown, need)
		}
	}
	if len(unknown) == 0 && len(needs) > 0 {
		return caller, nil, nil
	}
	if err := plausible(token, time.Now()); err != nil {
		return "", nil, invalid(err)
	}
	from := grpcconn.Source(ctx)
	if !a.checks.Allow(from) {
		return "", nil, status.Error(codes.ResourceExhausted,
			"too many tokens from this address are being checked: try again in a second")
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	turn, ok := a.turns.Await(ctx, checkTimeout, from, func() {})
	if !ok {
		return "", nil, status.Errorf(codes.ResourceExhausted, "%d other tokens are being checked: try again", checksAtOnce)
	}
	defer turn.Leave()
	asked := time.Now()
	user, err := a.identify(ctx, token)
	if err != nil {
		return "", nil, err
	}
	errs = a.reviewAll(ctx, user, unknown)
	for _, need := range unknown {
		if errs[need] == nil {
			a.allowed.Add(permission{of, need}, user.Username, validity-time.Since(asked))
		}
	}
	return user.Username, errs, nil
}

// plausible returns why a token is invalid without asking the API server.
func plausible(token string, now time.Time) error {
	claims, err := tokenreview.Claimed(token, mesh.AdminAudience, &struct{}{})
	if err != nil {
		return err
	}
	if claims.Expiry != nil && !now.Before(claims.Expiry.Time()) {
		return fmt.Errorf("it has expired: exp: %s", claims.Expiry.Time().UTC().Format(time.RFC3339))
	}
	return nil
}

// identify returns the user of a token.
func (a *Authorizer) identify(ctx context.Context, token string) (authenticationv1.UserInfo, error) {
	user, err := tokenreview.Review(ctx, a.o.Tokens, token, mesh.AdminAudience)
	switch {
	case errors.Is(err, identity.ErrUnavailable):
		return user, unavailable(err)
	case err != nil:
		return user, invalid(err)
	}
	return user, nil
}

// reviewAll returns an error for each right that a user lacks, or that could not be reviewed.
func (a *Authorizer) reviewAll(
	ctx context.Context, user authenticationv1.UserInfo, needs []adminv1.Right,
) map[adminv1.Right]error {
	errs := map[adminv1.Right]error{}
	var mu sync.Mutex
	var running sync.WaitGroup
	for _, need := range needs {
		running.Go(func() {
			if err := a.review(ctx, user, need); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs[need] = err
			}
		})
	}
	running.Wait()
	return errs
}

// review returns why a user may not make a call that needs a right, nil if the user may.
func (a *Authorizer) review(ctx context.Context, user authenticationv1.UserInfo, need adminv1.Right) error {
	resource, subresource, _ := strings.Cut(need.Resource, "/")
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, Groups: user.Groups, UID: user.UID, Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Group: mesh.Group, Resource: resource,
			Subresource: subresource, Verb: need.Verb},
	}
	for key, values := range user.Extra {
		spec.Extra[key] = authorizationv1.ExtraValue(values)
	}
	answer, err := a.o.Rights.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return unavailable(fmt.Errorf("review access: %w", err))
	}
	if answer.Status.Allowed {
		return nil
	}
	text := forbidden(user.Username, need)
	if reason := answer.Status.Reason; reason != "" {
		text += ": " + cut.Text(reason, maxReason)
	}
	return status.Error(codes.PermissionDenied, text)
}

// forbidden names the missing right and the user, in the words of API servers.
func forbidden(user string, need adminv1.Right) string {
	return fmt.Sprintf("%s.%s is forbidden: User %q cannot %s resource %q in API group %q at the cluster scope",
		need.Resource, mesh.Group, user, need.Verb, need.Resource, mesh.Group)
}

func invalid(err error) error { return status.Errorf(codes.Unauthenticated, "invalid token: %v", err) }

func unavailable(err error) error {
	return status.Errorf(codes.Unavailable,
		"the API server does not answer whether the caller may: %s; "+
			"the admin token works without it", cut.Text(err.Error(), maxReason))
}
