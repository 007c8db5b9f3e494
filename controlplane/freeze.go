package controlplane

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
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

// orderFreeze has the replica that leads freeze or thaw a zone. Errors are gRPC statuses.
func (c *cluster) orderFreeze(ctx context.Context, r *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error) {
	if done, err := c.controller.Freeze.Order(r); done != nil || err != nil {
		return done, err
	}
	done, missing, err := c.cp.peers.OrderFreeze(ctx, r)
	switch {
	case done != nil || err != nil:
		return done, err //nolint:wrapcheck // it is a status
	case len(missing) > 0:
		return nil, status.Error(codes.Unavailable, "no replica that has answered leads, and these have not: "+strings.Join(missing, ", "))
	}
	return nil, status.Error(codes.Unavailable, "no replica leads now: try again")
}
