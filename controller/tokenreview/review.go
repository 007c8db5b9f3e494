package tokenreview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/cut"
)

const (
	// maxToken is how long a token may be that is sent to the API server, in bytes. Projected ones have about 1,200.
	maxToken = 16 << 10
	// maxReason is how much of the API server's reason is passed on, in bytes.
	maxReason = 300
)

// algorithms are those that API servers sign with. Source: kubernetes pkg/serviceaccount/jwt.go, and external signers.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512}

// Claimed returns the claims of a token for an audience, and decodes them into own, too: what the token says of itself, which only the API server can
// check. The error says why it can be none for this audience, and does not contain the token.
func Claimed(token, audience string, own any) (jwt.Claims, error) {
	var standard jwt.Claims
	if token == "" {
		return standard, errors.New("it is empty")
	}
	if len(token) > maxToken {
		return standard, fmt.Errorf("it has %d bytes, at most %d are read", len(token), maxToken)
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return standard, errors.New("it is no signed JWT")
	}
	if err := parsed.UnsafeClaimsWithoutVerification(&standard, own); err != nil {
		return standard, errors.New("its claims are not those of a projected token")
	}
	if !slices.Contains(standard.Audience, audience) {
		return standard, fmt.Errorf("aud: must hold %q", audience)
	}
	return standard, nil
}

// Review has the API server check a token for an audience, and returns the user that it is for. The error wraps identity.ErrUnavailable if the API
// server does not answer; else it says why the token is refused. It does not contain the token.
func Review(ctx context.Context, reviews Reviews, token, audience string) (authenticationv1.UserInfo, error) {
	request := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{audience}}}
	review, err := reviews.Create(ctx, request, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, fmt.Errorf("%w: review token: %s", identity.ErrUnavailable, clean(err.Error(), token))
	}
	s := review.Status
	if !s.Authenticated {
		return authenticationv1.UserInfo{}, errors.New("the API server refuses it: " + clean(cmp.Or(s.Error, "without a reason"), token))
	}
	// An API server that does not know audiences ignores those of the request.
	if !slices.Contains(s.Audiences, audience) {
		return authenticationv1.UserInfo{}, fmt.Errorf("aud: %q, must hold %q", s.Audiences, audience)
	}
	return s.User, nil
}

// clean returns a text of the API server without the token, cut.
func clean(text, token string) string {
	text = strings.ReplaceAll(text, token, "<token>")
	return cut.Text(text, maxReason)
}
