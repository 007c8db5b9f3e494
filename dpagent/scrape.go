package dpagent

import (
	"context"
	"fmt"
	"io"
	"net/http"
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

// scraper serves the agent's metrics, and after them Envoy's statistics, as one page. Their names never clash: they begin with sonde_, go_ or
// process_, and with envoy_.
type scraper struct {
	own    prometheus.Gatherer
	envoy  statistics
	missed prometheus.Counter
	slots  chan struct{}
}

// statistics are those of Envoy, in the text format of Prometheus.
type statistics interface {
	Stats(ctx context.Context, w io.Writer) error
}

func newScraper(own *prometheus.Registry, envoy statistics) *scraper {
	s := &scraper{own: own, envoy: envoy, slots: make(chan struct{}, maxScrapes), missed: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sonde_dpagent_envoy_scrapes_failed_total",
		Help: "Scrapes that got the agent's metrics alone, since Envoy does not run or has not given its statistics.",
	})}
	own.MustRegister(s.missed)
	return s
}

// ServeHTTP implements http.Handler.
func (s *scraper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		http.Error(w, fmt.Sprintf("%d scrapes are under way, which is the limit", maxScrapes), http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), scrapeTimeout)
	defer cancel()
	families, err := s.own.Gather()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	format := expfmt.NewFormat(expfmt.TypeTextPlain) // Envoy has no other
	w.Header().Set("Content-Type", string(format))
	page := &written{Writer: w}
	encoder := expfmt.NewEncoder(page, format)
	for _, f := range families {
		if encoder.Encode(f) != nil {
			return // the caller has gone
		}
	}
	own := page.n
	if err := s.envoy.Stats(ctx, page); err != nil {
		s.missed.Inc()
		if page.n > own {
			panic(http.ErrAbortHandler) // half of the statistics would pass for all
		}
	}
}

// written counts bytes.
type written struct {
	io.Writer
	n int
}

// Write implements io.Writer.
func (w *written) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.n += n
	return n, err
}
