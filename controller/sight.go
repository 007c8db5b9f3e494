package controller

import (
	"context"
	"errors"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/freeze"
	"github.com/sonde-mesh/sonde/controller/leader"
	"github.com/sonde-mesh/sonde/controller/restarts"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/partition"
)

// Agents knows the agents of all proxies, at any replica. *agents.Server implements it.
type Agents interface {
	restarts.Agents
	// Connected reports whether the agent of a proxy has a session.
	Connected(proxy mesh.ID) bool
	// LastSeen returns the end of a disconnected proxy's last session, and false for a proxy that has not joined.
	LastSeen(proxy mesh.ID) (time.Time, bool)
}

// Peers are the other replicas. *replicas.Peers implements it.
type Peers interface {
	// Follow receives the addresses of the replicas by name, after the first read and after each change.
	Follow(addresses map[string]string)
	// Stale returns why this replica must not lead, nil if it may.
	Stale() error
	// Missing returns the names of disconnected replicas.
	Missing() []string
	// Streaming returns the proxies that have an ADS stream with another replica, and the names of the replicas that did
	// not answer.
	Streaming(context.Context) (proxies map[mesh.ID]bool, missing []string)
	// ChangedFreeze sends the verdict of Controller.Freeze to the other replicas. It returns at once.
	ChangedFreeze()
}

func (c *Controller) newFreeze() {
	c.Freeze = freeze.New(freeze.Options{
		Nodes: c.nodes, Proxies: c.proxies, Streams: c.streams, Lacking: c.o.Peers.Missing, Tell: c.o.Peers.ChangedFreeze,
		Apply:  func(kept map[string]int) { c.Cluster.Freeze(kept) },
		Record: c.Events.Record, Lease: watch.Key{Namespace: c.o.Namespace, Name: leader.LeaseName}, Secrets: c.o.Secrets,
		Mode:       c.o.FreezeMode,
		Registerer: c.o.Registerer, Logger: c.o.Logger, Loop: c.o.Loops.Freeze,
	})
}

// nodes returns the nodes with pods of the mesh.
func (c *Controller) nodes() (map[string]freeze.Node, error) {
	if err := errors.Join(c.Cluster.Missing(), c.Cluster.Lost().Err); err != nil {
		return nil, err
	}
	all := map[string]freeze.Node{}
	for name, n := range c.Cluster.Members() {
		all[name] = freeze.Node{Zone: n.Zone, Unknown: n.Unknown}
	}
	return all, nil
}

// proxies returns the proxies that have joined and should be running.
func (c *Controller) proxies(now time.Time) []partition.Member {
	agents := c.o.Agents()
	var all []partition.Member
	for id, zone := range c.Cluster.Proxies() {
		m := partition.Member{Name: id, Zone: zone, Heard: now}
		if !agents.Connected(id) {
			last, joined := agents.LastSeen(id)
			if !joined {
				continue
			}
			m.Heard = last
		}
		all = append(all, m)
	}
	return all
}

// streams returns the proxies that have an ADS stream with any replica, and false if not all replicas answered.
func (c *Controller) streams(ctx context.Context) (map[mesh.ID]bool, bool) {
	all, missing := c.o.Peers.Streaming(ctx)
	for _, id := range c.o.Streams() {
		all[id] = true
	}
	return all, len(missing) == 0
}
