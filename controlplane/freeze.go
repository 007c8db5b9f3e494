package controlplane

import (
	"context"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller"
)

// sight is what all replicas know of proxies. It is asked once the control plane has its agents.
func (c *cluster) sight() controller.Sight {
	cp := c.cp
	return controller.Sight{
		Connected: func(id mesh.ID) bool { return cp.agents.Connected(id) },
		LastSeen:  func(id mesh.ID) (time.Time, bool) { return cp.agents.LastSeen(id) },
		Lacking:   cp.peers.Missing, Tell: cp.peers.ChangedFreeze,
		Streams: func(ctx context.Context) (map[mesh.ID]bool, bool) {
			all, missing := cp.peers.Streaming(ctx)
			for _, s := range cp.pipeline.XDS.Status() {
				all[s.Node] = true
			}
			return all, len(missing) == 0
		},
	}
}
