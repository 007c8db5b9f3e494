package controlplane

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/sonde-mesh/sonde/admin"
	"github.com/sonde-mesh/sonde/admin/lists"
	"github.com/sonde-mesh/sonde/admin/lookup"
	"github.com/sonde-mesh/sonde/agents/join"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/strict"
)

// adminOptions returns Options that connect the admin API with the other stages.
func (cp *ControlPlane) adminOptions() admin.Options {
	view := lookup.View(cp.pipeline.Builder.View)
	cp.registry.MustRegister(lists.ServiceMetrics{View: view, Agents: cp.agents})
	return admin.Options{
		TLS:         cp.serving.TLS(),
		BearerToken: cp.adminToken,
		Connections: cp.places[usesAdmin],
		Access:      cp.connection.access,
		View:        view,
		Lists: &lists.Answers{
			View: view, Problems: cp.platform.problems, Streams: cp.allStreams, Missing: cp.peers.Missing, Agents: cp.agents,
			Since: cp.pipeline.Since, CAExpires: cp.authority.CAExpires,
			PodState: cp.connection.podState, ProbesOf: cp.connection.probesOf,
		},
		Rotations: cp.agents.Rotations(),
		Strict: &strict.Answers{
			View: view, Agents: cp.agents, Streams: cp.allStreams, Missing: cp.peers.Missing, PodsAt: cp.connection.podsAt,
		},
		Restarts:  cp.connection.restarts,
		Freeze:    cp.connection.freeze,
		Resources: cp.pipeline.Resources,
		Bootstrap: func(p *meshview.Proxy) ([]byte, error) {
			return cp.bootstrap(p, join.Sidecar{
				ControlPlane: cp.listeners.agents.Addr().String(), DrainTime: mesh.DefaultDrainTime,
				Memory:        mesh.DefaultSidecarMemory,
				ServingCAFile: true, Records: true,
			})
		},
		Query:  cp.agents.Query,
		Drain:  cp.agents.SetDrained,
		Token:  cp.tokens.Issue,
		Health: cp.checks,
		Logger: cp.o.Logger,
	}
}

// bootstrap returns the bootstrap of a proxy.
func (cp *ControlPlane) bootstrap(p *meshview.Proxy, s join.Sidecar) ([]byte, error) {
	o := generator.BootstrapOptions{
		Node:         p.ID(),
		Cluster:      mesh.WorkloadText(p.Dataplane.SPIFFEPath()),
		ControlPlane: s.ControlPlane,
		ServingName:  mesh.ServingName,
		DrainTime:    s.DrainTime,
		Records:      s.Records,
		Memory:       s.Memory,
	}
	if !s.ServingCAFile {
		o.ServingCA = cp.serving.CA()
	}
	b, err := generator.Bootstrap(o)
	if err != nil {
		return nil, err
	}
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("encode the bootstrap of %s: %w", p.ID(), err)
	}
	return data, nil
}

// allStreams returns the ADS streams with all replicas, and the names of the replicas that did not answer.
func (cp *ControlPlane) allStreams(ctx context.Context) (streams map[mesh.ID][]*adminv1.Stream, missing []string) {
	streams, missing = cp.peers.Streams(ctx)
	for id, here := range cp.streams() {
		streams[id] = append(here, streams[id]...)
	}
	return streams, missing
}

// streams returns the ADS streams with this replica.
func (cp *ControlPlane) streams() map[mesh.ID][]*adminv1.Stream {
	return cp.pipeline.Streams(cp.platform.replica())
}
