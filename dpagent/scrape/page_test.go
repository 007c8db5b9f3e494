package scrape_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/dpagent/scrape"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// statistics writes statistics in place of Envoy.
type statistics func(ctx context.Context, w io.Writer) error

func (s statistics) Stats(ctx context.Context, w io.Writer) error { return s(ctx, w) }

func says(text string, err error) statistics {
	return func(_ context.Context, w io.Writer) error {
		_, writeErr := io.WriteString(w, text)
		return errors.Join(err, writeErr)
	}
}

// failures returns the value of failedScrapes.
func failures(t *testing.T, registry *prometheus.Registry) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == failedScrapes {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no %s", failedScrapes)
	return 0
}

// endless writes until Write fails.
func endless(text string) statistics {
	return func(_ context.Context, w io.Writer) error {
		part := []byte(strings.Repeat(text, 1000))
		for {
			if _, err := w.Write(part); err != nil {
				return err
			}
		}
	}
}

// hangs writes text, and then waits for the end of the scrape.
func hangs(text string) statistics {
	return func(ctx context.Context, w io.Writer) error {
		if _, err := io.WriteString(w, text); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
}

// success is the last metric of a page.
const success = "sonde_dpagent_envoy_scrape_success"

// scrapeTimeout bounds the response of Envoy.
const scrapeTimeout = 5 * time.Second

// answerTimeout bounds the time in which a client reads its page.
const answerTimeout = scrapeTimeout + time.Second

const failedScrapes = "sonde_dpagent_envoy_scrapes_failed_total"

func TestScrape(t *testing.T) {
	gone := errors.New("connection refused")
	huge := strings.Repeat("envoy_a{envoy_cluster_name=\"web\"} 18446744073709551615\n", 1000) // more than the buffer
	for name, tc := range map[string]struct {
		envoy    statistics
		want     []string // texts of the page, in this order
		isBroken bool     // the connection is aborted, so that the page does not look complete
		failed   bool     // the next scrape counts a failure
		took     time.Duration
	}{
		"both":                    {envoy: says("envoy_a 1\n", nil), want: []string{"own 1\n", "envoy_a 1\n", success + " 1\n"}},
		"no end of a line":        {envoy: says("envoy_a 1", nil), want: []string{"own 1\n", "envoy_a 1\n", success + " 1\n"}},
		"much":                    {envoy: says(huge, nil), want: []string{"own 1\n", huge, success + " 1\n"}},
		"Envoy does not run":      {envoy: says("", gone), want: []string{"own 1\n", success + " 0\n"}, failed: true},
		"Envoy hangs":             {envoy: hangs(""), want: []string{"own 1\n", success + " 0\n"}, failed: true, took: scrapeTimeout},
		"Envoy begins, and hangs": {envoy: hangs("envoy_a 1\n"), want: []string{"own 1\n", success + " 0\n"}, failed: true, took: scrapeTimeout},
		"Envoy ends at once":      {envoy: says("envoy_a 1\nenvoy_", gone), want: []string{"own 1\n", success + " 0\n"}, failed: true},
		"Envoy ends":              {envoy: says(huge+"envoy_", gone), isBroken: true, failed: true},
		"Envoy does not end":      {envoy: endless("envoy_a{b=\"" + strings.Repeat("x", 1000) + "\"} 1\n"), isBroken: true, failed: true},
		"nor a line of it":        {envoy: endless("envoy_a"), want: []string{"own 1\n", success + " 0\n"}, failed: true},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			own := prometheus.NewGauge(prometheus.GaugeOpts{Name: "own"})
			own.Set(1)
			registry.MustRegister(own)
			body, took, isBroken := scrapeLocal(t, scrape.NewPage(registry, tc.envoy).Local())
			if isBroken != tc.isBroken || took != tc.took {
				t.Errorf("broken: %t after %s, want %t after %s", isBroken, took, tc.isBroken, tc.took)
			}
			if tc.failed && !isBroken && strings.Contains(body, "\nenvoy_") {
				t.Errorf("the page has part of Envoy's statistics:\n%s", body)
			}
			rest := body
			for _, want := range tc.want {
				_, after, found := strings.Cut(rest, want)
				if !found {
					t.Fatalf("no %q at the right place in:\n%s", want, body)
				}
				rest = after
			}
			want := 0.0
			if tc.failed {
				want = 1
			}
			if got := failures(t, registry); got != want {
				t.Errorf("%s is %v, want %v", failedScrapes, got, want)
			}
		})
	}
}

// scrapeLocal sends one request, and reports whether the handler aborted the connection.
func scrapeLocal(t *testing.T, page http.Handler) (body string, took time.Duration, isBroken bool) {
	t.Helper()
	w, began := recorder{httptest.NewRecorder()}, time.Now()
	func() {
		defer func() { isBroken = recover() == http.ErrAbortHandler }() //nolint:errorlint // net/http compares it so
		page.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
	}()
	if got := w.Header().Get("Content-Type"); got != "text/plain; version=0.0.4; charset=utf-8" {
		t.Errorf("Content-Type %q", got)
	}
	return w.Body.String(), time.Since(began), isBroken
}

// TestScrapesAreLimited has an Envoy that does not answer: only a few scrapes may reach it at a time.
func TestScrapesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, proceed := make(chan struct{}), make(chan struct{})
		handler := scrape.NewPage(prometheus.NewRegistry(), statistics(func(context.Context, io.Writer) error {
			asked <- struct{}{}
			<-proceed
			return nil
		})).Local()
		codes := make(chan int)
		scrape := func() {
			w := recorder{httptest.NewRecorder()}
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
			codes <- w.Code
		}
		for range 2 {
			go scrape()
			<-asked
		}
		go scrape()
		if code := <-codes; code != http.StatusServiceUnavailable {
			t.Errorf("a scrape above the limit: %d", code)
		}
		close(proceed)
		for range 2 {
			if code := <-codes; code != http.StatusOK {
				t.Errorf("scrape: %d", code)
			}
		}
	})
}
