package pods

import "github.com/prometheus/client_golang/prometheus"

// Results of a request.
const (
	resultRedirected = "redirected"
	resultNotInMesh  = "not-in-mesh"
	resultUnknown    = "unknown"
	resultFailed     = "failed"
)

// States of a running pod.
const (
	stateRedirected = "redirected"
	stateBroken     = "broken"
	stateUnknown    = "unknown"
)

// Metrics counts requests, repairs and pods.
type Metrics struct {
	requests *prometheus.CounterVec
	repairs  prometheus.Counter
	pods     *prometheus.GaugeVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonde_cni_requests_total", Help: "Requests of the CNI plugin, by result: redirected, not-in-mesh, unknown (the pod could not be read, and starts) or failed.",
		}, []string{"result"}),
		repairs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_cni_repairs_total", Help: "Running pods whose missing or changed rules the daemon has written again.",
		}),
		pods: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sonde_cni_pods", Help: "Running pods of the node that the plugin redirects, by state: redirected, broken if their rules cannot be written, or unknown if the container runtime does not record their network namespaces.",
		}, []string{"state"}),
	}
	r.MustRegister(m.requests, m.repairs, m.pods)
	for _, result := range []string{resultRedirected, resultNotInMesh, resultUnknown, resultFailed} {
		m.requests.WithLabelValues(result)
	}
	return m
}

func (m *Metrics) answered(result string) { m.requests.WithLabelValues(result).Inc() }

func (m *Metrics) repaired(pods map[string]int) {
	for _, state := range []string{stateRedirected, stateBroken, stateUnknown} {
		m.pods.WithLabelValues(state).Set(float64(pods[state]))
	}
}
