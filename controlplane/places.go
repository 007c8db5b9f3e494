package controlplane

import (
	"cmp"
	"math"

	"github.com/sonde-mesh/sonde/admin"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/identity/mtls"
	"github.com/sonde-mesh/sonde/internal/descriptors"
	"github.com/sonde-mesh/sonde/replicas"
	"github.com/sonde-mesh/sonde/webhook"
)

// Uses of file descriptors. usesOwn covers files, and connections to the API server, to replicas and to this process.
const (
	usesOwn      = "files and own connections"
	usesArrivals = "clients before their handshake"
	usesJoins    = "agents that join"
	usesProxies  = "proxies"
	usesAdmin    = "admin API"
	usesHealth   = "health"
	usesWebhook  = "webhook"
	usesPeers    = "replicas"
)

// shareDescriptors returns the maximum of connections per port, so that a flood of one port leaves descriptors for all
// others.
func (o *Options) shareDescriptors() (descriptors.Shares, error) {
	uses := []descriptors.Use{
		{Name: usesOwn, Least: 96, Most: 1024},
		{Name: usesHealth, Least: 32, Most: health.MaxConnections},
		{Name: usesAdmin, Least: 16, Most: admin.MaxConnections},
		{Name: usesArrivals, Least: 64, Most: mtls.MaxArrivals},
		{Name: usesJoins, Least: 32, Most: mtls.Joins(o.Memory)},
		{Name: usesProxies, Least: 64},
	}
	if o.onKubernetes() {
		uses = append(uses, descriptors.Use{Name: usesWebhook, Least: 32, Most: webhook.MaxConnections},
			descriptors.Use{Name: usesPeers, Least: 16, Most: replicas.MaxConnections})
	}
	limit := cmp.Or(o.OpenFiles, math.MaxInt32)
	shares, err := descriptors.Share(limit, uses...)
	if err != nil {
		return nil, err
	}
	shares.Warn(o.Logger, limit, uses...)
	return shares, nil
}
