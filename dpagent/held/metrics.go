package held

import "github.com/prometheus/client_golang/prometheus"

// held returns the containers whose failures are held back now.
func (l *Liveness) held() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var held []string
	for name, c := range l.containers {
		if c.held {
			held = append(held, name)
		}
	}
	return held
}

// heldMetric computes the metric at the time of a scrape.
type heldMetric struct{ liveness *Liveness }

var heldDesc = prometheus.NewDesc("sonde_liveness_held",
	"1 for each container whose liveness failures are held back from the kubelet.", []string{"container"}, nil)

// Describe implements prometheus.Collector.
func (m heldMetric) Describe(to chan<- *prometheus.Desc) { to <- heldDesc }

// Collect implements prometheus.Collector.
func (m heldMetric) Collect(to chan<- prometheus.Metric) {
	for _, container := range m.liveness.held() {
		to <- prometheus.MustNewConstMetric(heldDesc, prometheus.GaugeValue, 1, container)
	}
}
