package controlplane

import (
	"context"
	"time"

	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/replicas"
)

// A replica whose watch hangs serves outdated endpoints, and new pods that connect to it never become ready. While
// another replica has seen newer events, it is not ready, serves no proxies and does not lead
// (docs/decisions/064-stale-replica.md).

const (
	// compareInterval is how often a replica compares how far it has read with how far the other replicas have.
	compareInterval = time.Second
	// checkCurrent is the name of the check that fails while this replica is stale, and so keeps new connections away.
	checkCurrent = "current"
)

func (c *cluster) checkStale() {
	c.cp.ready(health.Check{Name: checkCurrent, Run: func(context.Context) error { return c.cp.peers.Stale() }})
}

// revisions reports how far this replica has read the pods of the mesh.
type revisions struct{ *cluster }

var _ replicas.Revisions = revisions{}

// Read implements replicas.Revisions.
func (r revisions) Read(ctx context.Context) (newest, seen uint64) {
	// if a check waits for the API server, use its last result
	ctx, cancel := context.WithTimeout(ctx, compareInterval/2)
	defer cancel()
	read := r.controller.Cluster.PodRevision()
	for _, check := range r.cp.checks.Results(ctx, health.Readyz) {
		if check.Failed() && check.Name != checkCurrent {
			return 0, read.Seen
		}
	}
	return read.Newest, read.Seen
}

// Latest implements replicas.Revisions.
func (r revisions) Latest(ctx context.Context) (uint64, error) {
	return r.controller.Cluster.LatestRevision(ctx)
}

// followOthers compares this replica with the others until ctx ends, and then returns nil.
func (c *cluster) followOthers(ctx context.Context) error {
	for range run.Every(ctx, compareInterval) {
		changed, err := c.cp.peers.Compare(ctx)
		switch {
		case changed && err != nil:
			c.cp.o.Logger.WarnContext(ctx, "this replica is stale, proxies connect to others", "err", err)
			c.cp.credentials.CloseAll() // by now it is not ready, and rejects calls
		case changed:
			c.cp.o.Logger.InfoContext(ctx, "this replica is no longer stale")
		}
	}
	return nil
}
