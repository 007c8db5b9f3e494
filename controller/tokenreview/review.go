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
	// maxToken bounds tokens that are sent to the API server, in bytes. Projected ones have about 1,200.
	maxToken = 16 << 10
	// maxReason bounds the API server's reason in an error, in bytes.
	maxReason = 300
)

// algorithms are the signature algorithms of API servers. Source: kubernetes pkg/serviceaccount/jwt.go, and external
// signers.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512}

// Claimed returns the unverified claims of a token, and also decodes them into own; only the API server can verify
// them. It returns an error, without the token, if the token cannot be valid for the audience.
func Claimed(token, audience string, own any) (jwt.Claims, error) {
	var standard jwt.Claims
	if token == "" {
		return standard, errors.New("the token is empty")
	}
	if len(token) > maxToken {
		return standard, fmt.Errorf("the token has %d bytes, at most %d are allowed", len(token), maxToken)
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return standard, errors.New("the token is not a signed JWT")
	}
	if err := parsed.UnsafeClaimsWithoutVerification(&standard, own); err != nil {
		return standard, errors.New("the token lacks the claims of a projected token")
	}
	if !slices.Contains(standard.Audience, audience) {
		return standard, fmt.Errorf("aud: must contain %q", audience)
	}
	return standard, nil
}

// Review asks the API server to verify a token for an audience, and returns its user. The error wraps
// identity.ErrUnavailable if the API server does not answer; otherwise it is the reason of the rejection. It never
// contains the token.
func Review(ctx context.Context, reviews Reviews, token, audience string) (authenticationv1.UserInfo, error) {
	request := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token,
		Audiences: []string{audience}}}
	review, err := reviews.Create(ctx, request, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, fmt.Errorf("%w: review token: %s", identity.ErrUnavailable,
			clean(err.Error(), token))
	}
	s := review.Status
	if !s.Authenticated {
		return authenticationv1.UserInfo{}, errors.New("the API server rejects the token: " +
			clean(cmp.Or(s.Error, "without a reason"), token))
	}
	// An API server that does not support audiences ignores the requested ones.
	if !slices.Contains(s.Audiences, audience) {
		return authenticationv1.UserInfo{}, fmt.Errorf("aud: %q: must contain %q", s.Audiences, audience)
	}
	return s.User, nil
}

// clean returns a text of the API server, cut, and without the token.
func clean(text, token string) string {
	text = strings.ReplaceAll(text, token, "<token>")
	return cut.Text(text, maxReason)
}
