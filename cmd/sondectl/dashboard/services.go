package dashboard

import (
	"slices"
	"strings"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
)

// Services are what clients call.
type Services struct {
	Rows    []Service `json:"rows"`
	LeftOut uint32    `json:"leftOut,omitempty"`
}

// Service has its endpoints, the worst first, at most maxEndpoints.
type Service struct {
	Mesh      string     `json:"mesh"`
	Name      string     `json:"name"`
	Protocol  string     `json:"protocol"`
	Level     Level      `json:"level"`
	Ready     int        `json:"ready"`
	Serving   int        `json:"serving"`
	Total     int        `json:"total"`
	Unchecked int        `json:"unchecked,omitempty"`
	Frozen    int        `json:"frozen,omitempty"`  // stay although Kubernetes takes them away
	Without   *time.Time `json:"without,omitempty"` // since when no endpoint gets traffic
	Reasons   []string   `json:"reasons,omitempty"`
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	LeftOut   int        `json:"leftOut,omitempty"`
}

// Endpoint is one of a service.
type Endpoint struct {
	Address   string     `json:"address"`
	Dataplane string     `json:"dataplane,omitempty"`
	Node      string     `json:"node,omitempty"`
	Health    string     `json:"health"`
	Level     Level      `json:"level"`
	Traffic   bool       `json:"traffic"`
	Sidecar   bool       `json:"sidecar"`
	Unchecked bool       `json:"unchecked,omitempty"`
	Reason    string     `json:"reason,omitempty"`
	Lost      *time.Time `json:"lost,omitempty"` // since when its agent is lost
}

// maxEndpoints limits the endpoints that a service lists.
const maxEndpoints = 500

func servicesOf(f *status.Facts, report *status.Report) *Services {
	called := map[mesh.ID]bool{} // of those that get no traffic
	for i := range report.Problems {
		if p := &report.Problems[i]; p.Severity == status.Critical {
			for _, object := range p.Objects {
				called[mesh.MakeID(p.Mesh, strings.TrimPrefix(object, "service/"))] = true
			}
		}
	}
	all := &Services{Rows: make([]Service, 0, len(f.Services)), LeftOut: f.LeftOut["services"]}
	for _, s := range f.Services {
		all.Rows = append(all.Rows, serviceOf(s, called[mesh.MakeID(s.GetMesh(), s.GetName())]))
	}
	return all
}

// serviceOf describes a service. called means that proxies call it although it gets no traffic.
func serviceOf(s *adminv1.Service, called bool) Service {
	row := Service{
		Mesh: s.GetMesh(), Name: s.GetName(), Protocol: s.GetProtocol(), Without: timeOf(s.GetWithoutSince()),
		Reasons: shortened(s.GetReasons()), Total: len(s.GetEndpoints()),
	}
	for _, e := range s.GetEndpoints() {
		endpoint := Endpoint{
			Address: e.GetAddress(), Dataplane: e.GetDataplane(), Node: e.GetNode(), Health: describe.HealthText(e.GetHealth()),
			Level: Bad, Traffic: describe.Serves(e), Sidecar: e.GetSidecar(), Unchecked: e.GetUnchecked(),
			Reason: shorten(e.GetReason()), Lost: timeOf(e.GetAgentLostSince()),
		}
		switch {
		case e.GetHealth() == adminv1.Endpoint_READY && e.GetUnchecked():
			endpoint.Level = Unknown
			row.Unchecked++
			row.Ready++
		case e.GetHealth() == adminv1.Endpoint_READY:
			endpoint.Level = Good
			row.Ready++
		case e.GetHealth() != adminv1.Endpoint_NOT_READY:
			endpoint.Level = Warn
		}
		if endpoint.Lost != nil && endpoint.Level == Good {
			endpoint.Level = Unknown
		}
		if isFrozen(e) {
			endpoint.Level = Unknown
			row.Frozen++
		}
		if endpoint.Traffic {
			row.Serving++
		}
		row.Endpoints = append(row.Endpoints, endpoint)
	}
	slices.SortStableFunc(row.Endpoints, func(a, b Endpoint) int {
		return slices.Index(levels, a.Level) - slices.Index(levels, b.Level)
	})
	switch {
	case row.Total == 0 && !called: // such as a Deployment of 0 replicas
		row.Level = Unknown
	case row.Serving == 0:
		row.Level = Bad
	case row.Ready < row.Total:
		row.Level = Warn
	case row.Endpoints[0].Level == Unknown:
		row.Level = Unknown
	default:
		row.Level = Good
	}
	row.LeftOut = max(0, row.Total-maxEndpoints)
	row.Endpoints = row.Endpoints[:row.Total-row.LeftOut]
	return row
}
