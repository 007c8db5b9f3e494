// Package scrape serves the agent's metrics followed by Envoy's as one page: to programs on this host, and on a port
// for Prometheus to every client that can reach it.
package scrape

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// Limits of scrapes. Envoy's main thread writes its statistics, and does nothing else meanwhile. Prometheus times out
// after 10 seconds, and should get the agent's metrics before that even if Envoy hangs.
const (
	maxScrapes    = 2
	scrapeTimeout = 5 * time.Second
)

// format is the only format that Envoy supports.
var format = expfmt.NewFormat(expfmt.TypeTextPlain)

// Page is the agent's metrics followed by Envoy's statistics, which are streamed. Their names never clash: the agent's
// begin with sonde_, go_ or process_, and Envoy's with envoy_.
type Page struct {
	own     *prometheus.Registry
	envoy   Statistics
	turns   *turns
	missed  prometheus.Counter
	dropped prometheus.Counter

	successMu sync.Mutex // guards success until it is gathered
	success   prometheus.Gauge
	last      *prometheus.Registry // has only success
}

// Statistics are Envoy's statistics, in the text format of Prometheus.
type Statistics interface {
	Stats(ctx context.Context, w io.Writer) error
}

// NewPage returns a page of the metrics in own, and registers its own metrics in own.
func NewPage(own *prometheus.Registry, envoy Statistics) *Page {
	p := &Page{
		own: own, envoy: envoy, turns: newTurns(),
		missed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_dpagent_envoy_scrapes_failed_total",
			Help: "Scrapes that returned only the agent's metrics, or were cut, because Envoy does not run or did not return its statistics.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_dpagent_envoy_lines_dropped_total",
			Help: "Lines of Envoy's statistics that were dropped because Prometheus could not parse them and would reject the page.",
		}),
		success: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sonde_dpagent_envoy_scrape_success",
			Help: "1 if this page contains Envoy's metrics, 0 if Envoy does not run or did not return its statistics.",
		}),
		last: prometheus.NewRegistry(),
	}
	own.MustRegister(p.missed, p.dropped)
	p.last.MustRegister(p.success)
	return p
}

// Local returns a handler for programs on this host, with all of Envoy's statistics. It shares the limits of Servers.
func (p *Page) Local() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.scrape(w, r, nil, false) == resultCut {
			panic(http.ErrAbortHandler)
		}
	})
}

// result is the result of serving a page.
type result string

// Results. A cut page must not look complete, so its connection is closed.
const (
	resultComplete     result = "complete"
	resultWithoutEnvoy result = "without_envoy"
	resultCut          result = "cut"
	resultFailed       result = "failed"
	resultBusy         result = "busy"
)

// write responds with the page. keep has the wanted name prefixes of Envoy's metrics; nil means all.
func (p *Page) write(ctx context.Context, w http.ResponseWriter, keep []string) result {
	families, err := p.own.Gather()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return resultFailed
	}
	w.Header().Set("Content-Type", string(format))
	encoder := expfmt.NewEncoder(w, format)
	for _, f := range families {
		if encoder.Encode(f) != nil {
			return resultCut // the caller has disconnected
		}
	}
	envoys := newLines(w, keep)
	err = p.envoy.Stats(ctx, envoys)
	success := 1.0
	if err == nil {
		err = envoys.end()
	}
	p.dropped.Add(float64(envoys.dropped))
	if err != nil {
		p.missed.Inc()
		if envoys.sent {
			return resultCut // part of the statistics would look complete
		}
		success = 0
	}
	if p.encodeSuccess(encoder, success) != nil {
		return resultCut
	}
	if success == 0 {
		return resultWithoutEnvoy
	}
	return resultComplete
}

// encodeSuccess writes the last metric, which tells whether the page contains Envoy's metrics.
func (p *Page) encodeSuccess(encoder expfmt.Encoder, success float64) error {
	p.successMu.Lock()
	p.success.Set(success)
	families, err := p.last.Gather()
	p.successMu.Unlock()
	for _, f := range families {
		err = errors.Join(err, encoder.Encode(f))
	}
	return err
}
