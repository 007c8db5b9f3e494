package token

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

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
)

var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// open opens the storage like a starting control plane, at the time now.
func open(t testing.TB, storage *secrettest.Memory) *Issuer {
	t.Helper()
	i, err := Open(t.Context(), Options{Storage: storage, Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

var web = identity.Subject{Mesh: "default", Dataplane: "web-1", Path: "/workload/web"}

// A token without a workload is only for the Dataplane itself.
func TestTokenOfADataplaneWithoutWorkload(t *testing.T) {
	a := open(t, &secrettest.Memory{})
	alone := identity.Subject{Mesh: "default", Dataplane: "web-1", Path: "/dataplane/web-1"}
	token, _, err := a.Issue(alone, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.Authenticate(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(alone, got); diff != "" {
		t.Error(diff)
	}
}

func TestToken(t *testing.T) {
	a := open(t, &secrettest.Memory{})
	token, expires, err := a.Issue(web, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if want := now.Add(time.Hour).Truncate(time.Second); !expires.Equal(want) {
		t.Errorf("it expires at %s, want %s", expires, want)
	}
	got, err := a.Authenticate(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(web, got); diff != "" {
		t.Error(diff)
	}
	a.now = func() time.Time { return now.Add(-2 * time.Hour) } // the clock was set back
	if _, err := a.Authenticate(t.Context(), token); err != nil {
		t.Errorf("a token that was made before the clock was set back is refused: %v", err)
	}
	other, _, err := a.Issue(web, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if token == other {
		t.Error("two tokens are the same: they have no ID of their own")
	}
}

func TestTokenIsRefused(t *testing.T) {
	a := open(t, &secrettest.Memory{})
	stranger := open(t, &secrettest.Memory{})
	fine := jwt.Claims{
		Issuer: issuer, Audience: jwt.Audience{mesh.TokenAudience}, ID: "1",
		IssuedAt: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(time.Hour)),
	}
	sign := func(signer jose.Signer, bend func(*jwt.Claims)) string {
		standard := fine
		if bend != nil {
			bend(&standard)
		}
		token, err := jwt.Signed(signer).Claims(standard).Claims(claims{"default", "web-1", "web"}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	mine := func(bend func(*jwt.Claims)) string { return sign(a.signer, bend) }
	signer := func(alg jose.SignatureAlgorithm, key any) jose.Signer {
		s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: a.id}}, nil)
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
		token, want string
	}{
		"empty":              {token: "", want: "empty"},
		"garbage":            {token: "garbage", want: "not a JWT signed with ES256"},
		"too long":           {token: strings.Repeat("a", maxSize+1), want: "at most"},
		"alg none":           {token: "eyJhbGciOiJub25lIn0." + parts[1] + ".", want: "not a JWT signed with ES256"},
		"HMAC by public key": {token: sign(signer(jose.HS256, []byte(strings.Repeat("k", 64))), nil), want: "not a JWT signed with ES256"},
		"RSA":                {token: sign(signer(jose.RS256, rsaKey), nil), want: "not a JWT signed with ES256"},
		"of another plane":   {token: sign(stranger.signer, nil), want: "kid"},
		"stolen kid":         {token: sign(signer(jose.ES256, ca.NewKey()), nil), want: "signature"},
		"claims swapped":     {token: parts[0] + "." + strings.Split(mine(func(c *jwt.Claims) { c.ID = "2" }), ".")[1] + "." + parts[2], want: "signature"},
		"expired": {
			token: mine(func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(now.Add(-90 * time.Second)) }),
			want:  "exp: expired at 2030-01-02T03:02:35Z, 1m30s ago",
		},
		"without end":    {token: mine(func(c *jwt.Claims) { c.Expiry = nil }), want: "exp: missing"},
		"without iat":    {token: mine(func(c *jwt.Claims) { c.IssuedAt = nil }), want: "iat"},
		"other audience": {token: mine(func(c *jwt.Claims) { c.Audience = jwt.Audience{"api"} }), want: "aud"},
		"other issuer":   {token: mine(func(c *jwt.Claims) { c.Issuer = "me" }), want: "iss"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := a.Authenticate(t.Context(), tc.token)
			if !errors.Is(err, errInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error = %v, want errInvalid that says %q", err, tc.want)
			}
			for part := range strings.SplitSeq(tc.token, ".") {
				if len(part) > 20 && strings.Contains(err.Error(), part) {
					t.Errorf("the error has a part of the token in it: %v", err)
				}
			}
		})
	}
}

// The claims are from earlier releases. The path is always below /workload, whatever the name of the workload.
func TestClaimsNameAWorkload(t *testing.T) {
	a := open(t, &secrettest.Memory{})
	for workload, path := range map[string]string{"web": "/workload/web", "/ns/shop/sa/web": "/workload//ns/shop/sa/web", "../ns/x": "/workload/../ns/x"} {
		signed, err := jwt.Signed(a.signer).Claims(jwt.Claims{
			Issuer: issuer, Audience: jwt.Audience{mesh.TokenAudience}, IssuedAt: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(time.Hour)),
		}).Claims(claims{"default", "web-1", workload}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		got, err := a.Authenticate(t.Context(), signed)
		if want := (identity.Subject{Mesh: "default", Dataplane: "web-1", Path: path}); got != want || err != nil {
			t.Errorf("Authenticate() = %+v, %v, want %+v", got, err, want)
		}
	}
}

func TestSigned(t *testing.T) {
	issue := func(i *Issuer) string {
		t.Helper()
		token, _, err := i.Issue(web, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	a := open(t, &secrettest.Memory{})
	own := issue(a)
	for token, want := range map[string]bool{
		own: true, issue(open(t, &secrettest.Memory{})): false, "": false, "wrong": false, own + strings.Repeat("x", maxSize): false,
	} {
		if got := a.Signed(token); got != want {
			t.Errorf("Signed(%.20q) = %t", token, got)
		}
	}
}

func TestKeySurvivesRestart(t *testing.T) {
	storage := &secrettest.Memory{}
	signed, _, err := open(t, storage).Issue(web, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, storage).Authenticate(t.Context(), signed); err != nil {
		t.Error(err)
	}
}

func TestAdminToken(t *testing.T) {
	storage := &secrettest.Memory{}
	made, err := OpenAdmin(t.Context(), storage)
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := OpenAdmin(t.Context(), storage); err != nil || kept != made {
		t.Errorf("OpenAdmin() = %q, %v after a restart, want %q", kept, err, made)
	}
	for written, want := range map[string]string{
		"\n":                                "the token has 0 bytes: must have from 16 to 4096",
		"\x00\x00\x00\x00" + made + "\n":    "must be one word of printable ASCII",
		strings.Repeat("a", 4097):           "the token has 4097 bytes: must have from 16 to 4096",
		made + "\n" + made + "\n":           "must be one word of printable ASCII",
		strings.Repeat("\ufffd", 20) + "\n": "must be one word of printable ASCII",
	} {
		storage.Put(adminFile, []byte(written))
		if _, err := OpenAdmin(t.Context(), storage); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), made) {
			t.Errorf("OpenAdmin() of %q: error = %v, want %q", written, err, want)
		}
	}
}

func TestBrokenKeyIsNamed(t *testing.T) {
	storage := &secrettest.Memory{}
	storage.Put(keyFile, []byte("secret"))
	_, err := Open(t.Context(), Options{Storage: storage})
	if err == nil || !strings.Contains(err.Error(), keyFile) || strings.Contains(err.Error(), "secret") {
		t.Errorf("error = %v, want one that names %s, without its content", err, keyFile)
	}
}

func TestTokenIsNotIssued(t *testing.T) {
	a := open(t, &secrettest.Memory{})
	tests := map[string]struct {
		subject  identity.Subject
		validity time.Duration
		want     string
	}{
		"no validity":         {web, 0, "validity"},
		"too long a validity": {web, 11 * 365 * 24 * time.Hour, "validity"},
		"no mesh":             {identity.Subject{Dataplane: "web-1", Path: "/workload/web"}, time.Hour, "mesh"},
		"no dataplane":        {identity.Subject{Mesh: "default", Path: "/workload/web"}, time.Hour, "dataplane"},
		"of a pod":            {identity.Subject{Mesh: "default", Dataplane: "web-1.shop", Path: "/ns/shop/sa/web"}, time.Hour, "must be /workload/"},
		"with an instance":    {identity.Subject{Mesh: "default", Dataplane: "web-1", Path: "/workload/web", Instance: "1"}, time.Hour, "without an instance"},
		"two segments":        {identity.Subject{Mesh: "default", Dataplane: "web-1", Path: "/workload/a/b"}, time.Hour, "must be /workload/"},
		"of another one":      {identity.Subject{Mesh: "default", Dataplane: "web-1", Path: "/dataplane/web-2"}, time.Hour, "must be /workload/"},
		"no workload":         {identity.Subject{Mesh: "default", Dataplane: "web-1"}, time.Hour, "workload"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, _, err := a.Issue(tc.subject, tc.validity)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want one that says %q", err, tc.want)
			}
		})
	}
}

func FuzzAuthenticate(f *testing.F) {
	a := open(f, &secrettest.Memory{})
	good, _, err := a.Issue(web, time.Hour)
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
		got, err := a.Authenticate(t.Context(), token)
		if err != nil {
			if !errors.Is(err, errInvalid) {
				t.Errorf("error = %v, want errInvalid", err)
			}
			return
		}
		// A signature has several encodings, but the signed part has only one.
		if !strings.HasPrefix(token, parts[0]+"."+parts[1]+".") {
			t.Errorf("a token that was not issued is taken: %q as %+v", token, got)
		}
	})
}
