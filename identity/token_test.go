package identity

import (
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/google/go-cmp/cmp"
)

var webToken = Token{Mesh: "default", Dataplane: "web-1", Workload: "web"}

func TestToken(t *testing.T) {
	clock := newClock()
	a := open(t, newMemory(), clock.Now)
	token, expires, err := a.IssueToken(webToken, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if want := clock.Now().Add(time.Hour).Truncate(time.Second); !expires.Equal(want) {
		t.Errorf("it expires at %s, want %s", expires, want)
	}
	got, err := a.VerifyToken(token, "default", "web-1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(webToken, got); diff != "" {
		t.Error(diff)
	}
	other, _, err := a.IssueToken(webToken, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if token == other {
		t.Error("two tokens are the same: they have no ID of their own")
	}
}

func TestTokenIsRefused(t *testing.T) {
	clock := newClock()
	storage := newMemory()
	a := open(t, storage, clock.Now)
	stranger := open(t, newMemory(), clock.Now)
	now := clock.Now()
	fine := jwt.Claims{
		Issuer: tokenIssuer, Audience: jwt.Audience{tokenAudience}, ID: "1",
		IssuedAt: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(time.Hour)),
	}
	sign := func(signer jose.Signer, bend func(*jwt.Claims)) string {
		claims := fine
		if bend != nil {
			bend(&claims)
		}
		token, err := jwt.Signed(signer).Claims(claims).Claims(tokenClaims{Mesh: "default", Dataplane: "web-1", Workload: "web"}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	mine := func(bend func(*jwt.Claims)) string { return sign(a.tokens.signer, bend) }
	signer := func(alg jose.SignatureAlgorithm, key any) jose.Signer {
		s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: a.tokens.id}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	whole := mine(nil)
	parts := strings.Split(whole, ".")
	tests := map[string]struct {
		token           string
		mesh, dataplane string
		is              error
		want            string
	}{
		"empty":              {token: "", is: errTokenRefused, want: "empty"},
		"garbage":            {token: "garbage", is: errTokenRefused, want: "no JWT signed with ES256"},
		"too long":           {token: strings.Repeat("a", maxToken+1), is: errTokenRefused, want: "at most"},
		"alg none":           {token: "eyJhbGciOiJub25lIn0." + parts[1] + ".", is: errTokenRefused, want: "no JWT signed with ES256"},
		"HMAC by public key": {token: sign(signer(jose.HS256, []byte(strings.Repeat("k", 64))), nil), is: errTokenRefused, want: "no JWT signed with ES256"},
		"RSA":                {token: sign(signer(jose.RS256, rsaKey), nil), is: errTokenRefused, want: "no JWT signed with ES256"},
		"of another plane":   {token: sign(stranger.tokens.signer, nil), is: errTokenRefused, want: "kid"},
		"stolen kid":         {token: sign(signer(jose.ES256, newKey(t)), nil), is: errTokenRefused, want: "signature"},
		"claims swapped":     {token: parts[0] + "." + strings.Split(mine(func(c *jwt.Claims) { c.ID = "2" }), ".")[1] + "." + parts[2], is: errTokenRefused, want: "signature"},
		"expired": {
			token: mine(func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(now.Add(-90 * time.Second)) }),
			is:    errTokenRefused, want: "exp: expired at 2030-01-02T03:02:35Z, 1m30s ago",
		},
		"without end":     {token: mine(func(c *jwt.Claims) { c.Expiry = nil }), is: errTokenRefused, want: "exp: missing"},
		"of the future":   {token: mine(func(c *jwt.Claims) { c.IssuedAt = jwt.NewNumericDate(now.Add(time.Hour)) }), is: errTokenRefused, want: "iat"},
		"without iat":     {token: mine(func(c *jwt.Claims) { c.IssuedAt = nil }), is: errTokenRefused, want: "iat"},
		"other audience":  {token: mine(func(c *jwt.Claims) { c.Audience = jwt.Audience{"api"} }), is: errTokenRefused, want: "aud"},
		"other issuer":    {token: mine(func(c *jwt.Claims) { c.Issuer = "me" }), is: errTokenRefused, want: "iss"},
		"other mesh":      {token: whole, mesh: "other", is: ErrTokenOfAnother, want: `mesh: for "default", not "other"`},
		"other dataplane": {token: whole, dataplane: "web-2", is: ErrTokenOfAnother, want: `dataplane: for "web-1", not "web-2"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			meshName, dataplane := "default", "web-1"
			if tc.mesh != "" {
				meshName = tc.mesh
			}
			if tc.dataplane != "" {
				dataplane = tc.dataplane
			}
			_, err := a.VerifyToken(tc.token, meshName, dataplane)
			contains(t, err, tc.want)
			if !errors.Is(err, tc.is) {
				t.Errorf("error = %v, want %v", err, tc.is)
			}
			for part := range strings.SplitSeq(tc.token, ".") {
				if len(part) > 20 && strings.Contains(err.Error(), part) {
					t.Errorf("the error has a part of the token in it: %v", err)
				}
			}
		})
	}
}

func TestTokenIsNotIssued(t *testing.T) {
	a := open(t, newMemory(), nil)
	tests := map[string]struct {
		token Token
		life  time.Duration
		want  string
	}{
		"no life":         {webToken, 0, "life"},
		"too long a life": {webToken, 11 * 365 * 24 * time.Hour, "life"},
		"no mesh":         {Token{Dataplane: "web-1", Workload: "web"}, time.Hour, "mesh"},
		"no dataplane":    {Token{Mesh: "default", Workload: "web"}, time.Hour, "dataplane"},
		"no workload":     {Token{Mesh: "default", Dataplane: "web-1"}, time.Hour, "workload"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, _, err := a.IssueToken(tc.token, tc.life)
			contains(t, err, tc.want)
		})
	}
}

func FuzzVerifyToken(f *testing.F) {
	clock := newClock()
	a := open(f, newMemory(), clock.Now)
	good, _, err := a.IssueToken(webToken, time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	parts := strings.Split(good, ".")
	for _, seed := range []string{
		good, "", ".", "..", "a.b.c", parts[0] + ".." + parts[2], parts[0] + "." + parts[1] + ".",
		"eyJhbGciOiJub25lIn0." + parts[1] + ".", "{}", `{"payload":"","signatures":[]}`, good + ".", good + "=", strings.Repeat(".", 100),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, token string) {
		got, err := a.VerifyToken(token, "default", "web-1")
		if err != nil {
			if !errors.Is(err, errTokenRefused) && !errors.Is(err, ErrTokenOfAnother) {
				t.Errorf("error = %v, want one of the two kinds", err)
			}
			return
		}
		// The encoding of the signature is not unique, but that of the signed part is.
		if !strings.HasPrefix(token, parts[0]+"."+parts[1]+".") {
			t.Errorf("a token that was not issued is taken: %q as %+v", token, got)
		}
	})
}
