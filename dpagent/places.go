package dpagent

import (
	"cmp"
	"log/slog"
	"math"

	"github.com/sonde-mesh/sonde/dpagent/perport"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/dpagent/scrape"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/internal/descriptors"
)

// Uses of descriptors. usesOwn covers files, checks of applications, and connections to the control plane and to Envoy.
const (
	usesOwn        = "files and own connections"
	usesHealth     = "--admin-addr"
	usesEnvoy      = "Envoy"
	usesLB         = "load balancers"
	usesMetrics    = "--metrics-addr"
	usesProbes     = "probes"
	usesProbePorts = "ports of probes"
)

// shareDescriptors returns how many connections each port may have.
func (o *Options) shareDescriptors(log *slog.Logger) (descriptors.Shares, error) {
	uses := []descriptors.Use{
		{Name: usesOwn, Least: 48, Most: 256},
		{Name: usesHealth, Least: 16, Most: health.MaxConnections},
		{Name: usesEnvoy, Least: 16, Most: health.MaxConnections},
		{Name: usesProbePorts, Least: 32, Most: 2 * perport.MaxConnections},
	}
	if o.LBHealthPort != 0 {
		uses = append(uses, descriptors.Use{Name: usesLB, Least: 16, Most: health.MaxConnections})
	}
	if o.MetricsAddress != "" {
		uses = append(uses, descriptors.Use{Name: usesMetrics, Least: 8, Most: scrape.MaxConnections})
	}
	if needed, err := o.Probes.Needed(); err == nil && needed {
		uses = append(uses, probeUse)
	}
	limit := cmp.Or(o.OpenFiles, math.MaxInt32)
	shares, err := descriptors.Share(limit, uses...)
	if err != nil {
		return nil, err
	}
	shares.Warn(log, limit, uses...)
	return shares, nil
}

// probeUse is the use of the probe table: one connection to the application for each caller. The callers' own
// connections belong to the guard.
var probeUse = descriptors.Use{Name: usesProbes, Least: 32, Most: probe.MaxConnections * 9 / 8}

// probeConnections returns how many callers a share of probeUse can serve, see probe.Options.Connections.
func probeConnections(share int) int { return share - max(8, share/9) }

// ProbeConnections returns how many callers of probes a process can serve at once if it may open openFiles files and
// does nothing else.
func ProbeConnections(openFiles int) (int, error) {
	shares, err := descriptors.Share(openFiles, descriptors.Use{Name: usesOwn, Least: 32, Most: 64}, probeUse)
	return probeConnections(shares[usesProbes]), err
}
