package access

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// server is an API server that accepts all tokens, delays its answers, and counts requests. test/real/kube has a real
// one.
type server struct {
	// takes is the delay of each answer; if hangs is set, it never answers.
	takes time.Duration
	hangs bool
	// denies denies all rights, allows allows all, and deleted makes all tokens invalid.
	denies, allows, deleted atomic.Bool

	tokens, rights atomic.Int32
}

func (s *server) wait(ctx context.Context) error {
	if s.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	select {
	case <-time.After(s.takes):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type tokens struct{ *server }

func (s tokens) Create(ctx context.Context, r *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	s.tokens.Add(1)
	if err := s.wait(ctx); err != nil {
		return nil, fmt.Errorf("post %s: %w", r.Spec.Token, err)
	}
	if s.deleted.Load() {
		r.Status.Error = "service account not found"
		return r, nil
	}
	r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, Audiences: r.Spec.Audiences, User: authenticationv1.UserInfo{
		Username: "system:serviceaccount:shop:default", UID: "u-1", Groups: []string{"system:authenticated"}, Extra: map[string]authenticationv1.ExtraValue{"key": {"value"}},
	}}
	return r, nil
}

type rights struct{ *server }

func (s rights) Create(ctx context.Context, r *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	s.rights.Add(1)
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	if r.Spec.UID != "u-1" || len(r.Spec.Groups) != 1 || len(r.Spec.Extra["key"]) != 1 {
		return nil, errors.New("the user is not the token's")
	}
	a := r.Spec.ResourceAttributes
	r.Status.Allowed = s.allows.Load() || !s.denies.Load() && a.Group == mesh.Group && a.Resource == "proxies" && a.Subresource == "envoy" && a.Verb == "get" && a.Namespace == ""
	r.Status.Reason = "a reason"
	return r, nil
}

var need = adminv1.Right{Verb: adminv1.VerbGet, Resource: "proxies/envoy"}

func newAuthorizer(t *testing.T, s *server) *Authorizer {
	t.Helper()
	a, err := New(Options{Tokens: tokens{s}, Rights: rights{s}})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// authorize asks for one right.
func authorize(a *Authorizer, ctx context.Context, token string, need adminv1.Right) (string, error) { //nolint:revive // as the method
	caller, errs, err := a.Authorize(ctx, token, []adminv1.Right{need})
	if err = cmp.Or(err, errs[need]); err != nil {
		return "", err
	}
	return caller, nil
}

// token returns a token that only the API server can check.
func token(n int, audience string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return strings.Join([]string{encode([]byte(`{"alg":"ES256"}`)), encode(fmt.Appendf(nil, `{"aud":[%q],"jti":"%d"}`, audience, n)), encode(make([]byte, 64))}, ".")
}

func from(t *testing.T, address string) context.Context {
	t.Helper()
	return peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(address), Port: 1}})
}

// advance moves the clock of a bubble.
func advance(d time.Duration) { time.Sleep(d) }

func TestAnswersAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		a := newAuthorizer(t, s)
		call := func(wantTokens, wantRights int32, want codes.Code) {
			t.Helper()
			caller, err := authorize(a, from(t, "10.0.0.1"), token(1, mesh.AdminAudience), need)
			if status.Code(err) != want || want == codes.OK && caller != "system:serviceaccount:shop:default" {
				t.Errorf("Authorize() = %q, %v, want %s", caller, err, want)
			}
			if is := [2]int32{s.tokens.Load(), s.rights.Load()}; is != [2]int32{wantTokens, wantRights} {
				t.Errorf("%v requests to the API server, want %d and %d", is, wantTokens, wantRights)
			}
		}
		call(1, 1, codes.OK)
		call(1, 1, codes.OK)
		s.denies.Store(true)
		advance(validity / 2)
		call(1, 1, codes.OK)
		advance(validity)
		call(2, 2, codes.PermissionDenied)
		call(3, 3, codes.PermissionDenied)
		s.denies.Store(false)
		call(4, 4, codes.OK) // a new right takes effect at once
	})
}

// A caller whose service account was deleted has no rights after validity, whatever calls it makes meanwhile, and
// however slow the API server is.
func TestNoAnswerOutlivesItsValidity(t *testing.T) {
	for _, takes := range []time.Duration{2 * time.Second, 0} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{takes: takes}
			a := newAuthorizer(t, s)
			s.allows.Store(true)
			may := func(resource string) bool {
				_, err := authorize(a, from(t, "10.0.0.1"), token(1, mesh.AdminAudience), adminv1.Right{Verb: adminv1.VerbGet, Resource: resource})
				return err == nil
			}
			reviewed := takes + time.Millisecond // when the token of the first call was reviewed
			deleted := time.Now().Add(reviewed)
			time.AfterFunc(reviewed, func() { s.deleted.Store(true) })
			if !may("proxies") {
				t.Fatal("the first call is rejected")
			}
			advance(validity - 2*takes - time.Second)
			may("health") // while the first answer is cached
			advance(time.Until(deleted.Add(validity + time.Millisecond)))
			for _, resource := range []string{"proxies", "health"} {
				if may(resource) {
					t.Errorf("takes %s: get %s is allowed %s after the service account was deleted", takes, resource, time.Since(deleted))
				}
			}
		})
	}
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	s := &server{}
	a := newAuthorizer(t, s)
	for n := range 2*remembered + 10 {
		if _, err := authorize(a, from(t, fmt.Sprintf("10.0.%d.%d", n/250, n%250)), token(n, mesh.AdminAudience), need); err != nil && status.Code(err) != codes.ResourceExhausted {
			t.Fatal(err)
		}
	}
	if n := len(a.allowed.Keys()); n != remembered {
		t.Errorf("%d permissions are cached, want %d", n, remembered)
	}
}

func TestWhatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hanging := &server{hangs: true}
		tests := map[string]struct {
			server *server
			token  string
			need   adminv1.Right
			code   codes.Code
			text   string
			asked  int32
		}{
			"no right": {&server{}, token(1, mesh.AdminAudience), adminv1.Right{Verb: adminv1.VerbCreate, Resource: "rotations"}, codes.PermissionDenied,
				`rotations.sonde.dev is forbidden: User "system:serviceaccount:shop:default" cannot create resource "rotations" in API group "sonde.dev" at the cluster scope: a reason`, 1},
			"another audience": {&server{}, token(1, mesh.TokenAudience), need, codes.Unauthenticated, `invalid token: aud: must contain "sonde-admin"`, 0},
			"no JWT":           {&server{}, "a.b.c", need, codes.Unauthenticated, "invalid token: the token is not a signed JWT", 0},
			"too long":         {&server{}, strings.Repeat("x", 17<<10), need, codes.Unauthenticated, "invalid token: the token has 17408 bytes, at most 16384 are allowed", 0},
			"no answer": {hanging, token(1, mesh.AdminAudience), need, codes.Unavailable,
				"the API server does not answer whether the caller may: the token cannot be checked now: review token: post <token>: context deadline exceeded; the admin token works without it", 1},
		}
		for name, tc := range tests {
			begin := time.Now()
			_, err := authorize(newAuthorizer(t, tc.server), from(t, "10.0.0.1"), tc.token, tc.need)
			if got := status.Convert(err); got.Code() != tc.code || got.Message() != tc.text {
				t.Errorf("%s: Authorize() = %s %q, want %s %q", name, got.Code(), got.Message(), tc.code, tc.text)
			}
			if n := tc.server.tokens.Load(); n != tc.asked {
				t.Errorf("%s: %d requests to the API server, want %d", name, n, tc.asked)
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("%s: the call took %s", name, took)
			}
		}
	})
}

// Few tokens of a source that sends them all the time are checked, and other sources do not wait for it.
func TestSourcesShareTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{takes: 50 * time.Millisecond}
		a := newAuthorizer(t, s)
		var callers sync.WaitGroup
		for n := range 1000 {
			callers.Go(func() { _, _ = authorize(a, from(t, "10.0.0.1"), token(n, mesh.AdminAudience), need) })
		}
		synctest.Wait()
		begin := time.Now()
		if _, err := authorize(a, from(t, "10.0.0.2"), token(-1, mesh.AdminAudience), need); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > 300*time.Millisecond {
			t.Errorf("another source waited for %s", took)
		}
		callers.Wait()
		if n := s.tokens.Load(); n > checksBurst+2 {
			t.Errorf("the API server checked %d tokens", n)
		}
	})
}

// Many viewers with a token each have one address behind a proxy, such as kubectl port-forward. Each may ask for all
// rights of a page at once.
func TestSeveralRightsAreOneCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{takes: 100 * time.Millisecond}
		a := newAuthorizer(t, s)
		needs := []adminv1.Right{need, {Verb: adminv1.VerbGet, Resource: "health"}, {Verb: adminv1.VerbGet, Resource: "restarts"}}
		began := time.Now()
		for n := range checksBurst {
			caller, errs, err := a.Authorize(from(t, "127.0.0.1"), token(n, mesh.AdminAudience), needs)
			if err != nil || caller == "" || len(errs) != 2 || errs[need] != nil || status.Code(errs[needs[1]]) != codes.PermissionDenied {
				t.Fatalf("viewer %d: %q, %v, %v", n, caller, errs, err)
			}
		}
		if took := time.Since(began); took != 2*checksBurst*s.takes || s.tokens.Load() != checksBurst {
			t.Errorf("%d tokens are checked in %s", s.tokens.Load(), took)
		}
		if _, _, err := a.Authorize(from(t, "127.0.0.1"), token(-1, mesh.TokenAudience), nil); status.Code(err) != codes.Unauthenticated {
			t.Errorf("without a right it is %v", err)
		}
	})
}
