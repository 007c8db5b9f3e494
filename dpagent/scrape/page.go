// Package scrape serves the agent's metrics, and after them Envoy's, as one page: to programs of this host, and at a port for Prometheus to
// every client that can reach it.
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

// Limits of scrapes: Envoy's main thread writes its statistics, and does nothing else meanwhile. Prometheus waits for 10 seconds, and should then
// have what the agent says of an Envoy that hangs.
const (
	maxScrapes    = 2
	scrapeTimeout = 5 * time.Second
)

// format is the only one that Envoy has.
var format = expfmt.NewFormat(expfmt.TypeTextPlain)

// Page is the agent's metrics, and after them Envoy's statistics, which are passed on as they come. Their names never clash: they begin with
// sonde_, go_ or process_, and with envoy_.
type Page struct {
	own     *prometheus.Registry
	envoy   Statistics
	turns   *turns
	missed  prometheus.Counter
	dropped prometheus.Counter

	successMu sync.Mutex // of success, until it is gathered
	success   prometheus.Gauge
	last      *prometheus.Registry // has success alone
}

// Statistics are those of Envoy, in the text format of Prometheus.
type Statistics interface {
	Stats(ctx context.Context, w io.Writer) error
}

// NewPage returns a page of the metrics that own has, and registers there what scrapes count.
func NewPage(own *prometheus.Registry, envoy Statistics) *Page {
	p := &Page{
		own: own, envoy: envoy, turns: newTurns(),
		missed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_dpagent_envoy_scrapes_failed_total",
			Help: "Scrapes that got the agent's metrics alone, or were cut, since Envoy does not run or has not given its statistics.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_dpagent_envoy_lines_dropped_total",
			Help: "Lines of Envoy's statistics that were left out, since no Prometheus could read them, and would refuse the page for them.",
		}),
		success: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sonde_dpagent_envoy_scrape_success",
			Help: "1 if this page has Envoy's metrics, 0 if it has the agent's alone, since Envoy does not run or has not given its own.",
		}),
		last: prometheus.NewRegistry(),
	}
	own.MustRegister(p.missed, p.dropped)
	p.last.MustRegister(p.success)
	return p
}

// Local returns a handler for programs of this host, with all of Envoy's statistics. It shares the turns of Servers.
func (p *Page) Local() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.scrape(w, r, nil, false) == resultCut {
			panic(http.ErrAbortHandler)
		}
	})
}

// result is what has become of a page.
type result string

// Results. A page that is cut must not pass for a whole one: its connection is to be closed.
const (
	resultComplete     result = "complete"
	resultWithoutEnvoy result = "without_envoy"
	resultCut          result = "cut"
	resultFailed       result = "failed"
	resultBusy         result = "busy"
)

// write answers with the page. keep has the prefixes of the names of Envoy's metrics that are wanted; nil is all.
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
			return resultCut // the caller has gone
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
			return resultCut // half of the statistics would pass for all
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

// encodeSuccess writes the metric that says whether the page has Envoy's, which is the last one.
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
