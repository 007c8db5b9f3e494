package watchdog

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/partition"
	"github.com/sonde-mesh/sonde/watchdog/cluster"
)

// metrics of a watchdog. It collects cluster states from the fleet.
type metrics struct {
	actions  *prometheus.CounterVec
	duration prometheus.Histogram
	fleet    *fleet
}

var (
	stateDesc = prometheus.NewDesc("sonde_watchdog_state",
		"State of the nodes of a cluster, from the leading replica: 0 seen, 1 lost, -1 unknown. Label cluster is the namespace/name of the WatchedCluster, group is whole or zone/NAME, and cause is empty for seen.",
		[]string{"cluster", "group", "cause"}, nil)
	leasesDesc = prometheus.NewDesc("sonde_watchdog_leases",
		"Node leases of all clusters at the last probe of each, by state: renewed, expired, unjudged (no renewal observed yet), or left-out (no node, or a node about to be deleted).",
		[]string{"state"}, nil)
)

func newMetrics(r prometheus.Registerer, f *fleet) *metrics {
	m := &metrics{
		fleet: f,
		actions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_watchdog_actions_total",
			Help: "Scaling actions on dependants, by action (scale-down, scale-up) and result: success, error, kept (another client set its replicas), ignored (by annotation) or dry-run.",
		}, []string{"action", "result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sonde_watchdog_probe_duration_seconds", Help: "Duration of cluster probes, including failed ones.",
			Buckets: []float64{0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30},
		}),
	}
	r.MustRegister(m.actions, m.duration, m)
	return m
}

// Describe implements prometheus.Collector.
func (*metrics) Describe(to chan<- *prometheus.Desc) {
	to <- stateDesc
	to <- leasesDesc
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	leases := map[cluster.LeaseState]int{cluster.Renewed: 0, cluster.Expired: 0, cluster.Unjudged: 0, cluster.LeftOut: 0}
	for key, one := range m.fleet.all() {
		if one.cluster == nil {
			continue
		}
		if s := one.cluster.Snapshot(); s != nil {
			collectState(to, key, s.State)
			for state, n := range maps.All(s.Leases) {
				leases[state] += n
			}
		}
	}
	for state, n := range leases {
		to <- prometheus.MustNewConstMetric(leasesDesc, prometheus.GaugeValue, float64(n), string(state))
	}
}

func collectState(to chan<- prometheus.Metric, key watch.Key, state partition.State) {
	for group, status := range state {
		value := 0.0
		switch status.Verdict {
		case partition.Lost:
			value = 1
		case partition.Unknown:
			value = -1
		}
		to <- prometheus.MustNewConstMetric(stateDesc, prometheus.GaugeValue, value, key.String(), group.String(),
			string(status.Cause))
	}
}
