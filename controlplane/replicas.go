package controlplane

import (
	"context"
	"fmt"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/replicas"
)

// sourcePeers has no objects. It is synced once the other replicas have said what they know, so that the first view has it.
const sourcePeers = "peers"

// peers returns the other replicas of a control plane on Kubernetes.
func (c *cluster) peers() (*replicas.Peers, error) {
	cp := c.cp
	certificate := cp.serving.Replica(cp.o.TrustDomain, cp.o.Kubernetes.Replica)
	p, err := replicas.New(replicas.Options{
		Name: cp.o.Kubernetes.Replica, Version: cp.o.Version, Server: certificate.Server(), Client: certificate.Client(), NameOf: certificate.NameOf,
		Connections: cp.places[usesPeers], Registerer: cp.registry, Logger: cp.o.Logger, Now: cp.o.now,
	})
	if err != nil {
		return nil, fmt.Errorf("connect the replicas: %w", err)
	}
	return p, nil
}

func (c *cluster) replica() string { return c.cp.o.Kubernetes.Replica }

// leads reports whether this replica leads.
func (c *cluster) leads() bool { return c.controller.Leads() }

// peerTasks are what runs for the sake of the other replicas.
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

// checkPeers adds a check that keeps no replica from being ready: without the others it serves what it knows.
func (c *cluster) checkPeers() {
	c.cp.ready(health.Check{Name: "peers", Informational: true, Run: func(context.Context) error { return c.cp.peers.Check() }})
}

// maxReplica is that of the name of a pod.
const maxReplica = 253

// validateReplica refuses a name that no certificate could have.
func (k *Kubernetes) validateReplica() error {
	if len(k.Replica) > maxReplica || strings.ContainsAny(k.Replica, "/ \t\n") {
		return &mesh.FieldError{Field: "Kubernetes.Replica", Value: k.Replica, Allowed: fmt.Sprintf("must be a name of at most %d characters without / and spaces", maxReplica)}
	}
	return nil
}
