package dpagent_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/sonde-mesh/sonde/dpagent"
)

// statistics writes in the place of Envoy.
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

const failedScrapes = "sonde_dpagent_envoy_scrapes_failed_total"

func TestScrape(t *testing.T) {
	gone := errors.New("connection refused")
	for name, tc := range map[string]struct {
		envoy    statistics
		want     []string // in this order
		isBroken bool     // the caller sees that this is not all
		failed   bool     // the next scrape says so
	}{
		"both":               {envoy: says("envoy_a 1\n", nil), want: []string{"own 1\n", "envoy_a 1\n"}},
		"Envoy does not run": {envoy: says("", gone), want: []string{"own 1\n"}, failed: true},
		"Envoy hangs": {envoy: func(ctx context.Context, _ io.Writer) error {
			<-ctx.Done()
			return ctx.Err()
		}, want: []string{"own 1\n"}, failed: true},
		"Envoy ends": {envoy: says("envoy_a 1\nenvoy_", gone), isBroken: true, failed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry := prometheus.NewRegistry()
			own := prometheus.NewGauge(prometheus.GaugeOpts{Name: "own"})
			own.Set(1)
			registry.MustRegister(own)
			server := httptest.NewServer(dpagent.NewScraper(registry, tc.envoy))
			defer server.Close()
			scrape := func() (string, error) {
				answer, err := server.Client().Get(server.URL)
				if err != nil {
					return "", err
				}
				defer answer.Body.Close() //nolint:errcheck // it is read to its end
				if got := answer.Header.Get("Content-Type"); got != "text/plain; version=0.0.4; charset=utf-8" {
					t.Errorf("Content-Type %q", got)
				}
				body, err := io.ReadAll(answer.Body)
				return string(body), err
			}
			body, err := scrape()
			if (err != nil) != tc.isBroken {
				t.Errorf("error %v, want one: %v", err, tc.isBroken)
			}
			rest := body
			for _, want := range tc.want {
				_, after, found := strings.Cut(rest, want)
				if !found {
					t.Fatalf("no %q in its place in:\n%s", want, body)
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

// TestScrapesAreLimited has an Envoy that does not answer: it is asked by few at a time.
func TestScrapesAreLimited(t *testing.T) {
	asked, proceed := make(chan struct{}), make(chan struct{})
	handler := dpagent.NewScraper(prometheus.NewRegistry(), statistics(func(context.Context, io.Writer) error {
		asked <- struct{}{}
		<-proceed
		return nil
	}))
	codes := make(chan int)
	scrape := func() {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
		codes <- w.Code
	}
	for range 2 {
		go scrape()
		<-asked
	}
	go scrape()
	if code := <-codes; code != http.StatusServiceUnavailable {
		t.Errorf("one scrape too many: %d", code)
	}
	close(proceed)
	for range 2 {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("scrape: %d", code)
		}
	}
}

// TestScrapeOfAnAgent has the real Envoy, whose statistics a parser of Prometheus' format reads together with the agent's.
func TestScrapeOfAnAgent(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	r := startAgent(t, options(t, cp))
	r.waitReady()
	_, page := r.get("/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(page))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, page)
	}
	for _, name := range []string{"sonde_dpagent_envoy_running", "sonde_healthcheck", "envoy_server_live", "envoy_server_uptime"} {
		if families[name] == nil {
			t.Errorf("no %s", name)
		}
	}
}
