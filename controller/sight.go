package controller

import (
	"context"
	"errors"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/freeze"
	"github.com/sonde-mesh/sonde/controller/leader"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/partition"
)

// Sight is what is known of proxies by all replicas, and how they are told of the verdict about it.
type Sight struct {
	// Connected reports whether the agent of a proxy has a session, with any replica.
	Connected func(proxy mesh.ID) bool
	// LastSeen returns when the last session of a proxy without one has ended, and false for a proxy that has not joined.
	LastSeen func(proxy mesh.ID) (time.Time, bool)
	// Streams, Lacking and Tell are those of freeze.Options.
	Streams func(ctx context.Context) (map[mesh.ID]bool, bool)
	Lacking func() []string
	Tell    func()
}

func (s *Sight) setDefaults() {
	if s.Connected == nil {
		s.Connected = func(mesh.ID) bool { return false }
	}
	if s.LastSeen == nil {
		s.LastSeen = func(mesh.ID) (time.Time, bool) { return time.Time{}, false }
	}
	if s.Streams == nil {
		s.Streams = func(context.Context) (map[mesh.ID]bool, bool) { return nil, true }
	}
	if s.Lacking == nil {
		s.Lacking = func() []string { return nil }
	}
	if s.Tell == nil {
		s.Tell = func() {}
	}
}

func (c *Controller) newFreeze() {
	c.Freeze = freeze.New(freeze.Options{
		Nodes: c.nodes, Proxies: c.proxies, Streams: c.o.Sight.Streams, Lacking: c.o.Sight.Lacking, Tell: c.o.Sight.Tell,
		Apply:  func(kept map[string]int) { c.Cluster.Freeze(kept) },
		Record: c.Events.Record, Lease: watch.Key{Namespace: c.o.Namespace, Name: leader.LeaseName}, Secrets: c.o.Secrets, Mode: c.o.FreezeMode,
		Registerer: c.o.Registerer, Logger: c.o.Logger, Loop: c.o.Loops.Freeze,
	})
}

// nodes returns those with pods of the mesh.
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

// proxies returns those that have joined and are to run.
func (c *Controller) proxies(now time.Time) []partition.Member {
	var all []partition.Member
	for id, zone := range c.Cluster.Proxies() {
		m := partition.Member{Name: id, Zone: zone, Heard: now}
		if !c.o.Sight.Connected(id) {
			last, joined := c.o.Sight.LastSeen(id)
			if !joined {
				continue
			}
			m.Heard = last
		}
		all = append(all, m)
	}
	return all
}
