package replicas

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct{ refused prometheus.Counter }

func newMetrics(p *Peers, registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{refused: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sonde_peers_refused_total",
		Help: "Calls and messages on the replica port that were rejected.",
	})}
	if registerer == nil {
		return m, nil
	}
	stale := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sonde_peers_stale",
		Help: "1 while this replica lacks pod changes that another replica has had for 5 s: it then serves no proxies and does not lead. Otherwise 0.",
	}, func() float64 {
		if p.Stale() != nil {
			return 1
		}
		return 0
	})
	for _, c := range []prometheus.Collector{m.refused, &states{p}, stale} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of peers: %w", err)
		}
	}
	return m, nil
}

var statesDescription = prometheus.NewDesc("sonde_peers",
	"Other replicas of the control plane, by state: connected, or missing while disconnected.", []string{"state"}, nil)

// states counts replicas when metrics are collected.
type states struct{ peers *Peers }

// Describe implements prometheus.Collector.
func (*states) Describe(to chan<- *prometheus.Desc) { to <- statesDescription }

// Collect implements prometheus.Collector.
func (s *states) Collect(to chan<- prometheus.Metric) {
	missing := len(s.peers.Missing())
	s.peers.mu.Lock()
	all := len(s.peers.followed)
	s.peers.mu.Unlock()
	to <- prometheus.MustNewConstMetric(statesDescription, prometheus.GaugeValue, float64(max(0, all-missing)),
		"connected")
	to <- prometheus.MustNewConstMetric(statesDescription, prometheus.GaugeValue, float64(missing), "missing")
}
