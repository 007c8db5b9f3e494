package health_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/sonde-mesh/sonde/health"
)

func TestServeHTTP(t *testing.T) {
	passes := func(context.Context) error { return nil }
	fails := func(context.Context) error { return errors.New("no view yet") }
	tests := map[string]struct {
		method, target string
		checks         map[string]health.Check
		wantStatus     int
		wantBody       string
	}{
		"no checks":             {"GET", "/livez", nil, 200, "ok\n"},
		"all pass":              {"GET", "/readyz", map[string]health.Check{"store": passes}, 200, "ok\n"},
		"all pass, verbose":     {"GET", "/readyz?verbose", map[string]health.Check{"store": passes}, 200, "[+]store ok\n"},
		"one fails":             {"GET", "/readyz", map[string]health.Check{"view": fails}, 503, "[-]view failed: no view yet\n"},
		"HEAD":                  {"HEAD", "/readyz", nil, 200, "ok\n"},
		"other methods refused": {"POST", "/readyz", nil, 405, "method not allowed\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var checks health.Checks
			for name, check := range tc.checks {
				checks.Add(name, check)
			}
			w := httptest.NewRecorder()
			checks.ServeHTTP(w, httptest.NewRequest(tc.method, tc.target, http.NoBody))
			if w.Code != tc.wantStatus || w.Body.String() != tc.wantBody {
				t.Errorf("%s %s = %d %q, want %d %q", tc.method, tc.target, w.Code, w.Body, tc.wantStatus, tc.wantBody)
			}
		})
	}
}

func TestCheckThatHangsHasFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var checks health.Checks
		checks.Add("store", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		checks.Add("other", func(context.Context) error { return nil })
		w := httptest.NewRecorder()
		checks.ServeHTTP(w, httptest.NewRequest("GET", "/readyz", http.NoBody))
		if want := "[-]store failed: context deadline exceeded\n[+]other ok\n"; w.Body.String() != want {
			t.Errorf("body = %q, want %q", w.Body, want)
		}
	})
}

func TestAddReplacesTheCheckOfTheSameName(t *testing.T) {
	var checks health.Checks
	checks.Add("view", func(context.Context) error { return errors.New("no view yet") })
	checks.Add("view", func(context.Context) error { return nil })
	w := httptest.NewRecorder()
	checks.ServeHTTP(w, httptest.NewRequest("GET", "/readyz?verbose", http.NoBody))
	if want := "[+]view ok\n"; w.Body.String() != want {
		t.Errorf("body = %q, want %q", w.Body, want)
	}
}
