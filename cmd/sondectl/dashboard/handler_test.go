package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

const (
	testToken = "a-token"
	testPort  = "4711"
)

// get sends a request as a page of the server would, changed by change.
func get(h http.Handler, path string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:"+testPort+path, http.NoBody)
	r.Header.Set("Authorization", "Bearer "+testToken)
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func newTestHandler(api adminv1.AdminServiceClient) (*handler, *source) {
	s := newSource(callOf(api), noClusters)
	return newHandler(s, testToken, testPort), s
}

func TestRequests(t *testing.T) {
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	host := func(host string) func(*http.Request) { return func(r *http.Request) { r.Host = host } }
	tests := map[string]struct {
		path   string
		change func(*http.Request)
		want   int
	}{
		"the page":                          {"/", nil, http.StatusOK},
		"the page without the token":        {"/", header("Authorization", ""), http.StatusOK},
		"its script":                        {"/app.js", nil, http.StatusOK},
		"its style":                         {"/app.css", nil, http.StatusOK},
		"HEAD":                              {"/", func(r *http.Request) { r.Method = http.MethodHead }, http.StatusOK},
		"the state":                         {"/api/state", nil, http.StatusOK},
		"a section":                         {"/api/section/workloads", nil, http.StatusOK},
		"by name":                           {"/api/state", host("localhost:" + testPort), http.StatusOK},
		"its own origin":                    {"/api/state", header("Origin", "http://127.0.0.1:"+testPort), http.StatusOK},
		"POST":                              {"/api/state", func(r *http.Request) { r.Method = http.MethodPost }, http.StatusMethodNotAllowed},
		"OPTIONS, as before another origin": {"/api/state", func(r *http.Request) { r.Method = http.MethodOptions }, http.StatusMethodNotAllowed},
		"a name that leads here":            {"/", host("evil.example:" + testPort), http.StatusForbidden},
		"another port":                      {"/api/state", host("127.0.0.1:80"), http.StatusForbidden},
		"without a port":                    {"/api/state", host("127.0.0.1"), http.StatusForbidden},
		"another origin":                    {"/api/state", header("Origin", "http://evil.example"), http.StatusForbidden},
		"another origin of this host":       {"/", header("Origin", "http://127.0.0.1:80"), http.StatusForbidden},
		"the other name as origin":          {"/api/state", header("Origin", "http://localhost:"+testPort), http.StatusForbidden},
		"origin null":                       {"/api/state", header("Origin", "null"), http.StatusForbidden},
		"without a token":                   {"/api/state", header("Authorization", ""), http.StatusUnauthorized},
		"a wrong token":                     {"/api/state", header("Authorization", "Bearer b-token"), http.StatusUnauthorized},
		"a token that begins right":         {"/api/state", header("Authorization", "Bearer a-toke"), http.StatusUnauthorized},
		"the token without its scheme":      {"/api/state", header("Authorization", testToken), http.StatusUnauthorized},
		"the token in the query":            {"/api/state?token=" + testToken, header("Authorization", ""), http.StatusUnauthorized},
		"a section without a token":         {"/api/section/workloads", header("Authorization", ""), http.StatusUnauthorized},
		"an unknown section":                {"/api/section/secrets", nil, http.StatusNotFound},
		"an unknown path":                   {"/assets/app.js", nil, http.StatusNotFound},
		"a path that leads out":             {"/../handler.go", nil, http.StatusNotFound},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h, _ := newTestHandler(wellAPI())
			w := get(h, tc.path, tc.change)
			if w.Code != tc.want {
				t.Errorf("status %d, want %d: %s", w.Code, tc.want, w.Body)
			}
			for header, want := range headers {
				if got := w.Header().Get(header); got != want {
					t.Errorf("%s: %q, want %q", header, got, want)
				}
			}
			if cookies := w.Result().Cookies(); len(cookies) > 0 {
				t.Errorf("it sets cookies: %v", cookies)
			}
		})
	}
}

// The policy is in the guide, word by word.
func TestContentSecurityPolicy(t *testing.T) {
	const want = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
	h, _ := newTestHandler(wellAPI())
	if got := get(h, "/", nil).Header().Get("Content-Security-Policy"); got != want {
		t.Errorf("it is %q, want %q", got, want)
	}
}

// Requests of the pages are limited. Those without the token do not count.
func TestTooManyRequests(t *testing.T) {
	h, _ := newTestHandler(wellAPI())
	h.limit.SetLimit(0) // as if no time passed
	for range 2 * requestsBurst {
		get(h, "/api/state", func(r *http.Request) { r.Header.Del("Authorization") })
	}
	for range requestsBurst {
		if w := get(h, "/api/state", nil); w.Code != http.StatusOK {
			t.Fatalf("status %d within the burst", w.Code)
		}
	}
	if w := get(h, "/api/state", nil); w.Code != http.StatusTooManyRequests {
		t.Errorf("status %d, want %d", w.Code, http.StatusTooManyRequests)
	}
	if w := get(h, "/", nil); w.Code != http.StatusOK {
		t.Errorf("status %d of the page itself", w.Code)
	}
}

func TestTokensDiffer(t *testing.T) {
	a, b := newToken(), newToken()
	if a == b || len(a) != 43 {
		t.Errorf("tokens %q and %q: must differ, and have 32 bytes each", a, b)
	}
}

// content is a section with its data.
type content struct {
	Section
	Data json.RawMessage `json:"data"`
}

// sectionsOf returns what a page gets, by section.
func sectionsOf(t *testing.T, h http.Handler) map[string]content {
	t.Helper()
	var state index
	if err := json.Unmarshal(get(h, "/api/state", nil).Body.Bytes(), &state); err != nil {
		t.Fatal(err)
	}
	all := map[string]content{}
	for name, section := range state.Sections {
		var c content
		if err := json.Unmarshal(get(h, "/api/section/"+name, nil).Body.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if c.Revision != section.Revision {
			t.Errorf("%s: revision %q, and in the state %q", name, c.Revision, section.Revision)
		}
		all[name] = c
	}
	return all
}

func TestSections(t *testing.T) {
	forbidden := grpcstatus.Error(codes.PermissionDenied, `"system:serviceaccount:a:b" must have the right to get restarts of group sonde.dev`)
	tests := map[string]struct {
		change func(*fakeAPI)
		// Sections that cannot be read, and those that may not.
		failed, denied []string
	}{
		"all can be read":        {func(*fakeAPI) {}, nil, nil},
		"restarts are forbidden": {func(a *fakeAPI) { a.errs["restarts"] = forbidden }, nil, []string{"restarts"}},
		"health is forbidden":    {func(a *fakeAPI) { a.errs["health"] = forbidden }, nil, []string{"controlplane"}},
		"proxies are forbidden": {
			func(a *fakeAPI) { a.errs["objects"] = forbidden }, nil, []string{"problems", "proxies", "services", "workloads"},
		},
		"restarts cannot be read": {
			func(a *fakeAPI) { a.errs["restarts"] = errors.New("broken") }, []string{"problems", "restarts", "workloads"}, nil,
		},
		"nothing can be read": {
			func(a *fakeAPI) {
				for _, of := range []string{"health", "objects", "restarts"} {
					a.errs[of] = grpcstatus.Error(codes.Unavailable, "connection refused")
				}
			},
			[]string{"controlplane", "problems", "proxies", "restarts", "services", "workloads"}, nil,
		},
		"the store is not read yet": {
			func(a *fakeAPI) {
				a.errs["objects"] = grpcstatus.Error(codes.Unavailable, "the control plane has not read its store yet")
				a.health.Checks[0].Status = adminv1.HealthCheck_FAILED
			},
			[]string{"proxies", "services", "workloads"}, nil,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			api := wellAPI()
			h, s := newTestHandler(api)
			if err := s.once(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := sectionsOf(t, h)
			tc.change(api)
			if err := s.once(t.Context()); err != nil {
				s.fail(err)
			}
			after := sectionsOf(t, h)
			failed, denied := compare(t, before, after)
			if !slices.Equal(failed, tc.failed) || !slices.Equal(denied, tc.denied) {
				t.Errorf("failed %q, denied %q, want %q, %q", failed, denied, tc.failed, tc.denied)
			}
		})
	}
}

// compare returns which sections could not be read again, and which may not be read.
func compare(t *testing.T, before, after map[string]content) (failed, denied []string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(after)) {
		section := after[name]
		switch {
		case name == sectionWatchdog: // it is not read from the control plane
		case section.Denied:
			denied = append(denied, name)
			if section.ReadAt != nil || string(section.Data) != "null" || !strings.Contains(section.Error, "must have the right") {
				t.Errorf("%s: it may not be read, and is %s: %q", name, section.Data, section.Error)
			}
		case section.Error != "":
			failed = append(failed, name)
			if !section.ReadAt.Equal(*before[name].ReadAt) || string(section.Data) != string(before[name].Data) {
				t.Errorf("%s: the last state is not kept, with its time", name)
			}
		case section.ReadAt.Before(*before[name].ReadAt):
			t.Errorf("%s: it was read again, and it has the time of the first reading", name)
		}
	}
	return failed, denied
}

// callOf calls an API that is there.
func callOf(api adminv1.AdminServiceClient) Call {
	return func(ctx context.Context, _ time.Duration, work func(context.Context, adminv1.AdminServiceClient) error) error {
		return work(ctx, api)
	}
}
