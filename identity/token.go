package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// tokenAudience is the audience of tokens with which agents join.
const tokenAudience = "sonde-cp"

const (
	tokenKeyFile = "dataplane-token.key"
	tokenIssuer  = "sonde-cp"
	// maxToken is the longest token that is read, in bytes; our own have about 500.
	maxToken = 4096
	// maxTokenLife is the longest life of a token.
	maxTokenLife = 10 * 365 * 24 * time.Hour
	// tokenSkew is how far in the future a token may have been issued.
	tokenSkew = time.Minute
	// algorithm is the only one that is accepted, whatever the header of a token says.
	algorithm = jose.ES256
)

var (
	// errTokenRefused says that a token is invalid: malformed, signed with another key, expired.
	errTokenRefused = errors.New("token refused")
	// ErrTokenOfAnother says that a token is valid, but for another mesh or dataplane.
	ErrTokenOfAnother = errors.New("token is for another")
)

// Token is the content of a dataplane token.
type Token struct {
	Mesh      string
	Dataplane string
	// Workload that the proxy's certificate will name. Join refuses the token if the Dataplane has another one.
	Workload string
}

// tokenClaims are the private claims of the JWT: those of a Token.
type tokenClaims struct {
	Mesh      string `json:"mesh"`
	Dataplane string `json:"dataplane"`
	Workload  string `json:"workload"`
}

// tokens signs and checks dataplane tokens.
type tokens struct {
	key    *ecdsa.PrivateKey
	id     string
	signer jose.Signer
	now    func() time.Time
}

func openTokens(storage Storage, now func() time.Time) (*tokens, error) {
	key, err := openTokenKey(storage)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("encode public key of tokens: %w", err)
	}
	t := &tokens{key: key, id: hash(public), now: now}
	t.signer, err = jose.NewSigner(
		jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: key, KeyID: t.id}},
		(&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return nil, fmt.Errorf("make signer of tokens: %w", err)
	}
	return t, nil
}

func openTokenKey(storage Storage) (*ecdsa.PrivateKey, error) {
	data, err := storage.Read(tokenKeyFile)
	if err == nil {
		key, err := decodeKey(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", tokenKeyFile, err)
		}
		return key, nil
	}
	if !missing(err) {
		return nil, fmt.Errorf("read %s: %w", tokenKeyFile, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key of tokens: %w", err)
	}
	if data, err = encodeKey(key); err != nil {
		return nil, err
	}
	if err := storage.Write(tokenKeyFile, data); err != nil {
		return nil, fmt.Errorf("write %s: %w", tokenKeyFile, err)
	}
	return key, nil
}

// IssueToken signs a dataplane token that is valid for life, from a second to ten years.
func (a *Authority) IssueToken(t Token, life time.Duration) (signed string, expires time.Time, err error) {
	if err := checkNames(t.Mesh, t.Dataplane); err != nil {
		return "", time.Time{}, err
	}
	if err := checkWorkload(t.Workload); err != nil {
		return "", time.Time{}, err
	}
	if life < time.Second || life > maxTokenLife {
		return "", time.Time{}, fmt.Errorf("life %s of the token: must be from 1s to %s", life, maxTokenLife)
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return "", time.Time{}, fmt.Errorf("make id of token: %w", err)
	}
	now := a.now()
	expiry := jwt.NewNumericDate(now.Add(life))
	signed, err = jwt.Signed(a.tokens.signer).
		Claims(jwt.Claims{
			Issuer:   tokenIssuer,
			Audience: jwt.Audience{tokenAudience},
			IssuedAt: jwt.NewNumericDate(now),
			Expiry:   expiry,
			ID:       base64.RawURLEncoding.EncodeToString(id[:]),
		}).
		Claims(tokenClaims(t)).
		Serialize()
	if err != nil {
		return "", time.Time{}, fmt.Errorf("sign token: %w", err)
	}
	return signed, expiry.Time(), nil
}

// VerifyToken checks a token with which a dataplane joins its mesh. The error is ErrTokenOfAnother if the token is valid
// for another one. Errors say which claim is wrong, and never contain the token.
func (a *Authority) VerifyToken(token, meshName, dataplane string) (Token, error) {
	t, err := a.tokens.verify(token)
	if err != nil {
		return Token{}, fmt.Errorf("%w: %w", errTokenRefused, err)
	}
	if t.Mesh != meshName {
		return Token{}, fmt.Errorf("%w mesh: for %q, not %q", ErrTokenOfAnother, t.Mesh, shorten(meshName))
	}
	if t.Dataplane != dataplane {
		return Token{}, fmt.Errorf("%w dataplane: for %q, not %q", ErrTokenOfAnother, t.Dataplane, shorten(dataplane))
	}
	return t, nil
}

// verify checks everything but whom the token is for. It hides the errors of the parser, which may contain the token.
func (t *tokens) verify(token string) (Token, error) {
	if token == "" {
		return Token{}, errors.New("it is empty")
	}
	if len(token) > maxToken {
		return Token{}, fmt.Errorf("it has %d bytes, at most %d are read", len(token), maxToken)
	}
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{algorithm})
	if err != nil {
		return Token{}, fmt.Errorf("it is no JWT signed with %s", algorithm)
	}
	if len(parsed.Headers) != 1 || parsed.Headers[0].KeyID != t.id {
		return Token{}, errors.New("kid: it was signed with another key than this control plane's")
	}
	var standard jwt.Claims
	var own tokenClaims
	if err := parsed.Claims(t.key.Public(), &standard, &own); err != nil {
		return Token{}, errors.New("its signature or its claims do not hold")
	}
	if err := t.checkClaims(standard); err != nil {
		return Token{}, err
	}
	return Token(own), nil
}

func (t *tokens) checkClaims(c jwt.Claims) error {
	now := t.now()
	switch {
	case c.Issuer != tokenIssuer:
		return fmt.Errorf("iss: %q, must be %q", shorten(c.Issuer), tokenIssuer)
	case !slices.Contains(c.Audience, tokenAudience):
		return fmt.Errorf("aud: must hold %q", tokenAudience)
	case c.Expiry == nil:
		return errors.New("exp: missing")
	case !now.Before(c.Expiry.Time()):
		return fmt.Errorf("exp: expired at %s, %s ago", c.Expiry.Time().UTC().Format(time.RFC3339),
			now.Sub(c.Expiry.Time()).Round(time.Second))
	case c.IssuedAt == nil:
		return errors.New("iat: missing")
	case c.IssuedAt.Time().After(now.Add(tokenSkew)):
		return fmt.Errorf("iat: made at %s, which is in the future", c.IssuedAt.Time().UTC().Format(time.RFC3339))
	}
	return nil
}
