package tokenreview_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	clientv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/agents/join"
	"github.com/sonde-mesh/sonde/controller/tokenreview"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ join.Authenticator = (*tokenreview.Authenticator)(nil)

// secretToken is the token of pod shop/web-1, as the API server issues it, but with an invalid signature.
var secretToken = token(`{"aud":["sonde-cp"],"sub":"system:serviceaccount:shop:web",
	"kubernetes.io":{"namespace":"shop","pod":{"name":"web-1","uid":"uid-1"},"serviceaccount":{"name":"web","uid":"uid-of-the-account"}}}`)

// token returns a JWT with these claims and an invalid signature.
func token(claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256","kid":"a"}`)) + "." + encode([]byte(claims)) + "." + encode([]byte("signature"))
}

// pods is a cache of pods.
type pods []tokenreview.Pod

func (all pods) Pod(uid string) (tokenreview.Pod, bool) {
	for _, p := range all {
		if p.UID == uid {
			return p, true
		}
	}
	return tokenreview.Pod{}, false
}

// apiServer answers TokenReviews over HTTP, in a bubble, as the API server does.
func apiServer(t *testing.T, answer http.HandlerFunc) tokenreview.Reviews {
	t.Helper()
	client, err := clientv1.NewForConfig(&rest.Config{Host: "http://api", Dial: virtual.ServeHTTP(t, answer, nil), ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	return client.TokenReviews()
}

func status(t *testing.T, s authenticationv1.TokenReviewStatus) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		want := authenticationv1.TokenReviewSpec{Token: secretToken, Audiences: []string{"sonde-cp"}}
		if diff := cmp.Diff(want, review.Spec); diff != "" {
			t.Errorf("TokenReview (-want +got):\n%s", diff)
		}
		if r.URL.Path != "/apis/authentication.k8s.io/v1/tokenreviews" || r.Method != http.MethodPost {
			t.Errorf("%s %s, want a TokenReview", r.Method, r.URL.Path)
		}
		review.Status = s
		review.APIVersion, review.Kind = "authentication.k8s.io/v1", "TokenReview"
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}
}

// good is the API server's review of the token of pod shop/web-1.
func good() authenticationv1.TokenReviewStatus {
	return authenticationv1.TokenReviewStatus{
		Authenticated: true, Audiences: []string{"sonde-cp"},
		User: authenticationv1.UserInfo{
			Username: "system:serviceaccount:shop:web", UID: "uid-of-the-account",
			Extra: map[string]authenticationv1.ExtraValue{
				"authentication.kubernetes.io/pod-name": {"web-1"}, "authentication.kubernetes.io/pod-uid": {"uid-1"},
			},
		},
	}
}

var web1 = tokenreview.Pod{Namespace: "shop", Name: "web-1", UID: "uid-1", ServiceAccount: "web", Mesh: "default"}

func TestAuthenticate(t *testing.T) {
	refused := errors.New("refused") // a third kind of error
	with := func(bend func(*tokenreview.Pod)) pods {
		p := web1
		bend(&p)
		return pods{p}
	}
	tests := map[string]struct {
		bend func(*authenticationv1.TokenReviewStatus)
		pods pods
		err  error
		want string
	}{
		"good": {pods: pods{web1}},
		"of another audience": {
			bend: func(s *authenticationv1.TokenReviewStatus) {
				*s = authenticationv1.TokenReviewStatus{Error: `[invalid bearer token, token audiences ["api"] is invalid for the target audiences ["sonde-cp"]]`}
			},
			pods: pods{web1}, err: refused, want: `token audiences ["api"] is invalid`,
		},
		"audience that the API server ignores": {
			bend: func(s *authenticationv1.TokenReviewStatus) { s.Audiences = nil }, pods: pods{web1}, err: refused, want: `must contain "sonde-cp"`,
		},
		"audience of the API server": {
			bend: func(s *authenticationv1.TokenReviewStatus) { s.Audiences = []string{"https://kubernetes.default.svc"} },
			pods: pods{web1}, err: refused, want: "aud:",
		},
		"refused without a reason": {
			bend: func(s *authenticationv1.TokenReviewStatus) { s.Authenticated = false }, pods: pods{web1}, err: refused, want: "without a reason",
		},
		"reason with the token": {
			bend: func(s *authenticationv1.TokenReviewStatus) { s.Authenticated, s.Error = false, "bad "+secretToken }, pods: pods{web1}, err: refused, want: "bad <token>",
		},
		"of a person": {bend: func(s *authenticationv1.TokenReviewStatus) { s.User.Username = "admin" }, pods: pods{web1}, err: refused, want: `user "admin"`},
		"of no pod":   {bend: func(s *authenticationv1.TokenReviewStatus) { s.User.Extra = nil }, pods: pods{web1}, err: refused, want: "not bound to a pod"},
		"of a pod, no UID": {bend: func(s *authenticationv1.TokenReviewStatus) {
			delete(s.User.Extra, "authentication.kubernetes.io/pod-uid")
		}, pods: pods{web1}, err: refused, want: "pod-uid"},
		"of a deleted pod":    {err: identity.ErrNotKnown, want: "pod shop/web-1 with UID uid-1 is deleted, or still unknown"},
		"of an earlier pod":   {pods: with(func(p *tokenreview.Pod) { p.UID = "uid-2" }), err: identity.ErrNotKnown, want: "pod shop/web-1 with UID uid-1 is deleted, or still unknown"},
		"UID of another pod":  {pods: with(func(p *tokenreview.Pod) { p.Name = "web-2" }), err: refused, want: "is shop/web-2"},
		"UID elsewhere":       {pods: with(func(p *tokenreview.Pod) { p.Namespace = "bank" }), err: refused, want: "is bank/web-1"},
		"another account":     {pods: with(func(p *tokenreview.Pod) { p.ServiceAccount = "db" }), err: refused, want: `service account "db"`},
		"mesh of others":      {pods: with(func(p *tokenreview.Pod) { p.Refused = errors.New("must be blue") }), err: refused, want: "pod shop/web-1: must be blue"},
		"pod that is no mesh": {pods: with(func(p *tokenreview.Pod) { p.Mesh = "" }), err: refused, want: "not in a mesh"},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			s := good()
			if tc.bend != nil {
				tc.bend(&s)
			}
			a, err := tokenreview.New(tokenreview.Options{Reviews: apiServer(t, status(t, s)), Pods: tc.pods})
			if err != nil {
				t.Fatal(err)
			}
			got, err := a.Authenticate(t.Context(), secretToken)
			if tc.err == nil {
				want := identity.Subject{Mesh: "default", Dataplane: "web-1.shop", Path: "/ns/shop/sa/web", Instance: "uid-1"}
				if diff := cmp.Diff(want, got); diff != "" || err != nil {
					t.Errorf("Authenticate() = %v (-want +got):\n%s", err, diff)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), secretToken) {
				t.Fatalf("error = %v, want %q, without the token", err, tc.want)
			}
			if errors.Is(err, identity.ErrNotKnown) != errors.Is(tc.err, identity.ErrNotKnown) || errors.Is(err, identity.ErrUnavailable) {
				t.Errorf("error = %v is of the wrong kind", err)
			}
		})
	}
}

// TestTokenThatIsNotSent has texts that cannot be the token of a joining pod, as any client may send them.
func TestTokenThatIsNotSent(t *testing.T) {
	const pod = `"pod":{"name":"web-1","uid":"uid-1"}`
	claims := func(audience, pod string) string {
		return `{"aud":[` + audience + `],"kubernetes.io":{"namespace":"shop",` + pod + `,"serviceaccount":{"name":"web"}}}`
	}
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		a, err := tokenreview.New(tokenreview.Options{Reviews: apiServer(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) }), Pods: pods{web1}})
		if err != nil {
			t.Fatal(err)
		}
		for name, tc := range map[string]struct{ token, want string }{
			"empty":             {"", "empty"},
			"too long":          {strings.Repeat("a", 16<<10+1), "at most 16384"},
			"no JWT":            {"nonsense", "not a signed JWT"},
			"no signature":      {strings.TrimSuffix(secretToken, ".c2lnbmF0dXJl"), "not a signed JWT"},
			"no JSON":           {token("{"), "lacks the claims of a projected token"},
			"other JSON":        {token(`{"kubernetes.io":[]}`), "lacks the claims of a projected token"},
			"of the API server": {token(claims(`"https://kubernetes.default.svc"`, pod)), `must contain "sonde-cp"`},
			"no audience":       {token(claims(``, pod)), `must contain "sonde-cp"`},
			"of no pod":         {token(claims(`"sonde-cp"`, `"node":{"name":"node-1"}`)), "not bound to a pod"},
			"no UID":            {token(claims(`"sonde-cp"`, `"pod":{"name":"web-1"}`)), "not bound to a pod"},
			"of another pod":    {token(claims(`"sonde-cp"`, `"pod":{"name":"web-1","uid":"uid-2"}`)), "with UID uid-2 is deleted, or still unknown"},
			"of a long name":    {token(claims(`"sonde-cp"`, `"pod":{"name":"web-1","uid":"`+strings.Repeat("u", 9000)+`"}`)), "with UID uuu"},
		} {
			_, err := a.Authenticate(t.Context(), tc.token)
			if err == nil || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 400 || len(tc.token) > 100 && strings.Contains(err.Error(), tc.token) {
				t.Errorf("%s: error = %v, want %q", name, err, tc.want)
			}
		}
		if n := asked.Load(); n > 0 {
			t.Errorf("%d requests to the API server", n)
		}
	})
}

// The API server fails, so the agent retries.
func TestUnavailable(t *testing.T) {
	tests := map[string]http.HandlerFunc{
		"error": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no "+secretToken, http.StatusInternalServerError)
		},
		"forbidden": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "RBAC", http.StatusForbidden) },
		"silence": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice that the client is gone
			<-r.Context().Done()
		},
	}
	for name, answer := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			a, err := tokenreview.New(tokenreview.Options{Reviews: apiServer(t, answer), Pods: pods{web1}})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if _, err := a.Authenticate(t.Context(), secretToken); !errors.Is(err, identity.ErrUnavailable) || strings.Contains(err.Error(), secretToken) {
				t.Errorf("error = %v, want ErrUnavailable without the token", err)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}
