package health_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/sonde-mesh/sonde/health"
)

// gatherings counts how often metrics are gathered. Each gathering takes a while.
type gatherings struct {
	*prometheus.Registry
	count prometheus.Counter
	takes time.Duration
}

func newGatherings(takes time.Duration) *gatherings {
	g := &gatherings{prometheus.NewRegistry(), prometheus.NewCounter(prometheus.CounterOpts{Name: "gathered_total", Help: "Times."}), takes}
	g.MustRegister(g.count)
	return g
}

func (g *gatherings) Gather() ([]*dto.MetricFamily, error) {
	g.count.Inc()
	<-time.After(g.takes)
	return g.Registry.Gather()
}

func scrape(h http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	return w
}

func TestMetricsAreGatheredOnceForAllThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := health.Metrics(newGatherings(time.Second))
		var asking sync.WaitGroup
		for range 100 {
			asking.Go(func() { scrape(h) })
		}
		asking.Wait()
		// One for the first caller, and one for all that arrived meanwhile.
		if got := scrape(h).Body.String(); !strings.Contains(got, "gathered_total 3") {
			t.Errorf("after a hundred callers at once one more got\n%s\nwant gathered_total 3", got)
		}
	})
}

// broken has a metric without a value.
type broken struct{}

func (broken) Describe(c chan<- *prometheus.Desc) {
	c <- prometheus.NewDesc("broken", "It is not to be had.", nil, nil)
}

func (broken) Collect(c chan<- prometheus.Metric) {
	c <- prometheus.NewInvalidMetric(prometheus.NewDesc("broken", "It is not to be had.", nil, nil), errors.New("no value today"))
}

func TestMetricsThatFail(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(broken{})
	h := health.Metrics(registry)
	for range 2 {
		if w := scrape(h); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "no value today") {
			t.Errorf("status %d, body %q, want 500 with the collector's error", w.Code, w.Body)
		}
	}
}
