package lists

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// maxMeasured limits the services of all meshes that have a series of their own.
const maxMeasured = 2000

// otherServices is the label of the services beyond maxMeasured.
const otherServices = "other"

var serviceEndpoints = prometheus.NewDesc("sonde_service_endpoints",
	"Endpoints of services, by state: ready, draining, not-ready, or stopped (the agent has drained and exited). Each replica counts all of them. "+
		"At most 2,000 services have their own label, first those without a ready endpoint; the rest is counted as other.",
	[]string{"mesh", "service", "state"}, nil)

// ServiceMetrics counts the endpoints of each service when metrics are collected. Both fields are required.
type ServiceMetrics struct {
	// View returns the current view, nil before the first.
	View func() *meshview.View
	// Agents has the state of each agent.
	Agents interface {
		States() map[mesh.ID]*adminv1.AgentState
	}
}

// measured has the number of a service's endpoints by state.
type measured struct {
	mesh, service string
	rank          int
	endpoints     endpointCount
}

// endpointCount is indexed by adminv1.Endpoint_Health.
type endpointCount [adminv1.Endpoint_STOPPED + 1]int

// stateNames are the labels of the states.
var stateNames = [...]string{
	adminv1.Endpoint_NOT_READY: "not-ready", adminv1.Endpoint_DRAINING: "draining",
	adminv1.Endpoint_READY: "ready", adminv1.Endpoint_STOPPED: "stopped",
}

// Describe implements prometheus.Collector.
func (c ServiceMetrics) Describe(to chan<- *prometheus.Desc) { to <- serviceEndpoints }

// Collect implements prometheus.Collector.
func (c ServiceMetrics) Collect(to chan<- prometheus.Metric) {
	all := c.measure()
	slices.SortFunc(all, func(a, b measured) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.mesh, b.mesh), cmp.Compare(a.service, b.service))
	})
	others := map[string]endpointCount{} // by mesh
	for i, s := range all {
		// A service whose name is otherServices is counted with the other services, since two series must not be the
		// same.
		if i >= maxMeasured || s.service == otherServices {
			sum := others[s.mesh]
			for state, n := range s.endpoints {
				sum[state] += n
			}
			others[s.mesh] = sum
			continue
		}
		s.endpoints.send(to, s.mesh, s.service)
	}
	for meshName, sum := range others {
		sum.send(to, meshName, otherServices)
	}
}

// measure returns all services of the view.
func (c ServiceMetrics) measure() []measured {
	v := c.View()
	if v == nil {
		return nil
	}
	agents := c.Agents.States()
	var all []measured
	for meshName, m := range v.Meshes {
		for name, svc := range m.Services.All() {
			s := measured{mesh: meshName, service: name}
			for _, e := range svc.Endpoints {
				_, agent := agentOf(m, e, agents)
				s.endpoints[shownHealth(meshview.InboundHealth{Health: e.Health, Reason: e.Reason}, agent)]++
			}
			s.rank = s.endpoints.rank()
			all = append(all, s)
		}
	}
	return all
}

// rank returns the order in which services get series of their own: services that raise the alert first, services
// without endpoints last.
func (c endpointCount) rank() int {
	switch {
	case c == endpointCount{}:
		return 2
	case c[adminv1.Endpoint_READY] > 0:
		return 1
	}
	return 0
}

func (c endpointCount) send(to chan<- prometheus.Metric, meshName, service string) {
	for state, n := range c {
		if name := stateNames[state]; name != "" {
			to <- prometheus.MustNewConstMetric(serviceEndpoints, prometheus.GaugeValue, float64(n), meshName, service, name)
		}
	}
}
