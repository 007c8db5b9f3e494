package health

import (
	"bytes"
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// metricsPause is the minimum interval between two gatherings of metrics.
const metricsPause = 100 * time.Millisecond

// metricsFormat is a format that every scraper supports.
var metricsFormat = expfmt.NewFormat(expfmt.TypeTextPlain)

// Metrics serves gathered metrics in Prometheus' text format. They are gathered once for all waiting callers, and
// before a response begins, so that a client that scrapes often or reads slowly costs no more than its connection.
func Metrics(from prometheus.Gatherer) http.Handler {
	return &metricsPage{from: from, turn: make(chan struct{}, 1)}
}

type metricsPage struct {
	from prometheus.Gatherer
	turn chan struct{} // scrapes that were already waiting may share the result
	at   time.Time
	body []byte
}

// ServeHTTP implements http.Handler.
func (p *metricsPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := p.latest(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(metricsFormat))
	_, _ = w.Write(body) // fails if the caller has disconnected
}

// latest returns metrics gathered after the call of latest.
func (p *metricsPage) latest(ctx context.Context) ([]byte, error) {
	arrival := time.Now()
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if p.at.After(arrival) {
		return p.body, nil
	}
	pause := time.NewTimer(time.Until(p.at.Add(metricsPause)))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	at := time.Now()
	families, err := p.from.Gather()
	if err != nil {
		return nil, err //nolint:wrapcheck // the error names the metric
	}
	var page bytes.Buffer
	encoder := expfmt.NewEncoder(&page, metricsFormat)
	for _, f := range families {
		if err := encoder.Encode(f); err != nil {
			return nil, err //nolint:wrapcheck // as above
		}
	}
	p.at, p.body = at, page.Bytes()
	return p.body, nil
}
