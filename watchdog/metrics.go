package watchdog

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/partition"
	"github.com/sonde-mesh/sonde/watchdog/cluster"
)

// metrics of a watchdog. What is known of clusters is collected from the fleet.
type metrics struct {
	actions  *prometheus.CounterVec
	duration prometheus.Histogram
	fleet    *fleet
}

var (
	stateDesc = prometheus.NewDesc("sonde_watchdog_state",
		"What is known of the nodes of a cluster, of the replica that leads: 0 seen, 1 lost, -1 unknown. The cluster is namespace/name of its WatchedCluster, the group whole or zone/NAME, and the cause empty for seen.",
		[]string{"cluster", "group", "cause"}, nil)
	leasesDesc = prometheus.NewDesc("sonde_watchdog_leases",
		"Leases of nodes of all clusters, as the last probe of each has found them: renewed, expired, unjudged (not seen to be renewed yet), or left-out (without a node, or with one that is about to be deleted).",
		[]string{"state"}, nil)
)

func newMetrics(r prometheus.Registerer, f *fleet) *metrics {
	m := &metrics{
		fleet: f,
		actions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_watchdog_actions_total",
			Help: "What was done with dependants: action scale-down or scale-up, result success, error, kept (another client has set its replicas), ignored (by its annotation) or dry-run.",
		}, []string{"action", "result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sonde_watchdog_probe_duration_seconds", Help: "How long probes of clusters take, those that fail as well.",
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
		to <- prometheus.MustNewConstMetric(stateDesc, prometheus.GaugeValue, value, key.String(), group.String(), string(status.Cause))
	}
}
