package health

import (
	"bytes"
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
)

// metricsPause is the least time between two times that metrics are gathered.
const metricsPause = 100 * time.Millisecond

// metricsFormat is what each scraper of Prometheus's formats understands.
var metricsFormat = expfmt.NewFormat(expfmt.TypeTextPlain)

// Metrics serves the metrics that are gathered, in Prometheus' text format. They are gathered once for all that
// wait, and before an answer begins: a client that asks often, or reads slowly, costs no more than its connection.
func Metrics(from prometheus.Gatherer) http.Handler {
	return &metricsPage{from: from, turn: make(chan struct{}, 1)}
}

type metricsPage struct {
	from prometheus.Gatherer
	turn chan struct{} // a scrape that has sent to it may use what follows
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
	_, _ = w.Write(body) // the caller may have gone
}

// latest returns metrics that were gathered after it was called.
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
		return nil, err //nolint:wrapcheck // it names the metric
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
