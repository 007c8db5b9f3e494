// Package token implements the tokens of the control plane: dataplane tokens, with which agents join, and the token of
// the admin API.
package token

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/identity/secret"
)

const (
	keyFile = "dataplane-token.key"
	// issuer is the issuer claim of tokens with which agents join.
	issuer = "sonde-cp"
	// maxSize limits a token in bytes. Tokens from Issue have about 500.
	maxSize = 4096
	// maxValidity is the longest validity of a token.
	maxValidity = 10 * 365 * 24 * time.Hour
	// algorithm is the only accepted algorithm; the token's header does not select it.
	algorithm = jose.ES256
)

// errInvalid means that a token is malformed, expired, or signed with another key.
var errInvalid = errors.New("invalid token")

// Options of an Issuer.
type Options struct {
	// Storage is required.
	Storage secret.Store
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// claims are the private claims of the JWT. Workload is a name, so the path is /workload/<name> or, without a workload,
// the Dataplane's own /dataplane/<name>.
type claims struct {
	Mesh      string `json:"mesh"`
	Dataplane string `json:"dataplane"`
	Workload  string `json:"workload,omitempty"`
}

// path returns the SPIFFE path of the claims.
func (c *claims) path() string {
	if c.Workload == "" {
		return mesh.DataplanePath(c.Dataplane)
	}
	return mesh.WorkloadPath(c.Workload)
}

// Issuer signs and checks dataplane tokens. It may be used from any goroutine.
type Issuer struct {
	key    *ecdsa.PrivateKey
	id     string // kid is the key ID
	signer jose.Signer
	now    func() time.Time
}

// Open returns the issuer with the key in the storage. It creates a missing key.
func Open(ctx context.Context, o Options) (*Issuer, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	key, err := openKey(ctx, o.Storage)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", keyFile, err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("encode public key of tokens: %w", err)
	}
	i := &Issuer{key: key, id: ca.Fingerprint(public), now: o.Now}
	i.signer, err = jose.NewSigner(
		jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: i.id}},
		(&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return nil, fmt.Errorf("make signer of tokens: %w", err)
	}
	return i, nil
}

func openKey(ctx context.Context, storage secret.Store) (*ecdsa.PrivateKey, error) {
	data, err := secret.ReadOrCreate(ctx, storage, keyFile, func() ([]byte, error) {
		return ca.EncodeKey(ca.NewKey()), nil
	})
	if err != nil {
		return nil, err
	}
	return ca.DecodeKey(data)
}

// Issue signs a dataplane token with a validity from one second to ten years. The path must be a workload's or the
// Dataplane's own, without an instance: pods use tokens of their service account instead.
func (i *Issuer) Issue(s identity.Subject, validity time.Duration) (signed string, expires time.Time, err error) {
	if err := s.Validate(); err != nil {
		return "", time.Time{}, err
	}
	private := claims{Mesh: s.Mesh, Dataplane: s.Dataplane}
	if workload, ok := mesh.WorkloadOf(s.Path); ok {
		private.Workload = workload
	}
	if s.Path != private.path() || s.Instance != "" {
		return "", time.Time{}, fmt.Errorf("path %q of the token: must be %s<workload> or %s, without an instance",
			s.Path, mesh.WorkloadPath(""), mesh.DataplanePath(s.Dataplane))
	}
	if validity < time.Second || validity > maxValidity {
		return "", time.Time{}, fmt.Errorf("validity %s of the token: must be from 1s to %s", validity, maxValidity)
	}
	now := i.now()
	expiry := jwt.NewNumericDate(now.Add(validity))
	signed, err = jwt.Signed(i.signer).
		Claims(jwt.Claims{
			Issuer:   issuer,
			Audience: jwt.Audience{mesh.TokenAudience},
			IssuedAt: jwt.NewNumericDate(now),
			Expiry:   expiry,
			ID:       rand.Text(),
		}).
		Claims(private).
		Serialize()
	if err != nil {
		return "", time.Time{}, fmt.Errorf("sign token: %w", err)
	}
	return signed, expiry.Time(), nil
}

// Authenticate returns the subject of a token. The error names the invalid claim, and never contains the token.
func (i *Issuer) Authenticate(_ context.Context, token string) (identity.Subject, error) {
	s, err := i.verify(token)
	if err != nil {
		return identity.Subject{}, fmt.Errorf("%w: %w", errInvalid, err)
	}
	return s, nil
}

// Signed reports whether a token claims to be from this issuer; Authenticate verifies that.
func (i *Issuer) Signed(token string) bool {
	if len(token) > maxSize {
		return false
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{algorithm})
	return err == nil && i.names(parsed)
}

func (i *Issuer) names(t *jwt.JSONWebToken) bool {
	return len(t.Headers) == 1 && t.Headers[0].KeyID == i.id
}

// verify hides the errors of the parser, which may contain the token.
func (i *Issuer) verify(token string) (identity.Subject, error) {
	if token == "" {
		return identity.Subject{}, errors.New("it is empty")
	}
	if len(token) > maxSize {
		return identity.Subject{}, fmt.Errorf("it has %d bytes: must have at most %d", len(token), maxSize)
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{algorithm})
	if err != nil {
		return identity.Subject{}, fmt.Errorf("it is not a JWT signed with %s", algorithm)
	}
	if !i.names(parsed) {
		return identity.Subject{}, errors.New("kid: signed with a key of another control plane")
	}
	var standard jwt.Claims
	var own claims
	if err := parsed.Claims(i.key.Public(), &standard, &own); err != nil {
		return identity.Subject{}, errors.New("its signature or its claims are invalid")
	}
	if err := i.checkClaims(standard); err != nil {
		return identity.Subject{}, err
	}
	return identity.Subject{Mesh: own.Mesh, Dataplane: own.Dataplane, Path: own.path()}, nil
}

func (i *Issuer) checkClaims(c jwt.Claims) error {
	now := i.now()
	switch {
	case c.Issuer != issuer:
		return fmt.Errorf("iss: %q, must be %q", c.Issuer, issuer)
	case !slices.Contains(c.Audience, mesh.TokenAudience):
		return fmt.Errorf("aud: must contain %q", mesh.TokenAudience)
	case c.Expiry == nil:
		return errors.New("exp: missing")
	case !now.Before(c.Expiry.Time()):
		return fmt.Errorf("exp: expired at %s, %s ago", c.Expiry.Time().UTC().Format(time.RFC3339),
			now.Sub(c.Expiry.Time()).Round(time.Second))
	case c.IssuedAt == nil: // accept a future time: this key has signed it, so the local clock is slow
		return errors.New("iat: missing")
	}
	return nil
}
