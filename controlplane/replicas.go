package controlplane

import (
	"context"
	"fmt"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/replicas"
)

// sourcePeers is a source without objects. It is synced after the other replicas have reported their state, so that the
// first view includes it.
const sourcePeers = "peers"

// peers returns the other replicas of a control plane on Kubernetes.
func (c *cluster) peers() (*replicas.Peers, error) {
	cp := c.cp
	certificate := cp.serving.Replica(cp.o.TrustDomain, cp.o.Kubernetes.Replica)
	p, err := replicas.New(replicas.Options{
		Name: cp.o.Kubernetes.Replica, Version: cp.o.Version, Server: certificate.Server(), Client: certificate.Client(),
		NameOf:      certificate.NameOf,
		Connections: cp.places[usesPeers], Registerer: cp.registry, Logger: cp.o.Logger, Now: cp.o.now,
	})
	if err != nil {
		return nil, fmt.Errorf("connect the replicas: %w", err)
	}
	return p, nil
}

func (c *cluster) replica() string { return c.cp.o.Kubernetes.Replica }

// leads reports whether this replica is the leader.
func (c *cluster) leads() bool { return c.controller.Leads() }

// peerTasks are the tasks for the exchange with other replicas.
func (c *cluster) peerTasks() []func(context.Context) error {
	cp := c.cp
	return []func(context.Context) error{
		cp.peers.Run,
		func(ctx context.Context) error { return cp.peers.Serve(ctx, cp.listeners.peers) },
		c.followOthers,
		func(ctx context.Context) error {
			if cp.peers.AwaitFirst(ctx) == nil {
				cp.pipeline.Builder.Synced(sourcePeers)
			}
			return nil
		},
	}
}

// checkPeers adds a check that never makes a replica unready: without the other replicas, it still serves its own
// state.
func (c *cluster) checkPeers() {
	c.cp.ready(health.Check{Name: "peers", Informational: true,
		Run: func(context.Context) error { return c.cp.peers.Check() }})
}

// maxReplica is the maximum length of a pod's name.
const maxReplica = 253

// validateReplica rejects a name that cannot be in a certificate.
func (k *Kubernetes) validateReplica() error {
	if len(k.Replica) > maxReplica || strings.ContainsAny(k.Replica, "/ \t\n") {
		allowed := fmt.Sprintf("must be a name of at most %d characters without / and spaces", maxReplica)
		return &mesh.FieldError{Field: "Kubernetes.Replica", Value: k.Replica, Allowed: allowed}
	}
	return nil
}
