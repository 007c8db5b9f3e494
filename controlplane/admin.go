package controlplane

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/admin"
	"github.com/sonde-mesh/sonde/agents/join"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/strict"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// adminOptions connect the admin API with the other stages.
func (cp *ControlPlane) adminOptions() admin.Options {
	return admin.Options{
		TLS:              cp.serving.TLS(),
		BearerToken:      cp.adminToken,
		Connections:      cp.places[usesAdmin],
		Access:           cp.connection.access,
		View:             cp.pipeline.Builder.View,
		Problems:         cp.platform.problems,
		Streams:          cp.allStreams,
		Missing:          cp.peers.Missing,
		Agents:           cp.agents.Agents,
		AgentStates:      cp.agents.States,
		Unresponsive:     cp.agents.Unresponsive,
		Since:            cp.pipeline.Since,
		NotServing:       cp.agents.NotServing,
		RefusedListeners: cp.agents.RefusedListeners,
		Resources:        cp.resources,
		Bootstrap: func(p *meshview.Proxy) ([]byte, error) {
			return cp.bootstrap(p, join.Sidecar{
				ControlPlane: cp.listeners.agents.Addr().String(), DrainTime: mesh.DefaultDrainTime, Memory: mesh.DefaultSidecarMemory,
				ServingCAFile: true, Records: true,
			})
		},
		Query:     cp.agents.Query,
		Drain:     cp.agents.SetDrained,
		CAExpires: cp.authority.CAExpires,
		Token:     cp.tokens.Issue,
		Rotator:   cp.agents,
		Restarts:  cp.connection.restartAnswers,
		Freeze:    cp.connection.freeze,
		Strict:    (&strict.Answers{Agents: cp.agents, View: cp.pipeline.Builder.View, PodsAt: cp.connection.podsAt}).Meshes,
		Health:    cp.healthChecks,
		Logger:    cp.o.Logger,
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

// kinds maps the kinds of the admin API to types of resources.
var kinds = map[adminv1.Kind]resource.Type{
	adminv1.KindClusters:  resource.Cluster,
	adminv1.KindEndpoints: resource.Endpoint,
	adminv1.KindListeners: resource.Listener,
	adminv1.KindRoutes:    resource.Route,
}

func kindOf(t resource.Type) string {
	for kind, candidate := range kinds {
		if candidate == t {
			return string(kind)
		}
	}
	return string(t)
}

// allStreams returns the ADS streams with all replicas, and which replicas have not said theirs.
func (cp *ControlPlane) allStreams(ctx context.Context) (streams map[mesh.ID][]*adminv1.Stream, missing []string) {
	streams, missing = cp.peers.Streams(ctx)
	for id, here := range cp.streams() {
		streams[id] = append(here, streams[id]...)
	}
	return streams, missing
}

// streams returns the ADS streams with this replica.
func (cp *ControlPlane) streams() map[mesh.ID][]*adminv1.Stream {
	streams := map[mesh.ID][]*adminv1.Stream{}
	for _, s := range cp.pipeline.XDS.Status() {
		stream := &adminv1.Stream{Replica: cp.platform.replica(), ConnectedSince: timestamppb.New(s.Connected), Delta: s.Delta, Records: s.Says.Records}
		for _, t := range s.Types {
			status := &adminv1.TypeStatus{Kind: kindOf(t.Type), Synced: s.Known && t.Pending == 0 && t.Unanswered.IsZero()}
			for _, n := range t.NACKs {
				status.Nacks = append(status.Nacks, &adminv1.Nack{Resource: n.Name, Version: n.Version, Reason: n.Reason, At: timestamppb.New(n.At)})
			}
			stream.Types = append(stream.Types, status)
		}
		streams[s.Node] = append(streams[s.Node], stream)
	}
	return streams
}

func healthCheck(r *health.Result) *adminv1.HealthCheck {
	status, reason := healthStatus(r, r.Err)
	c := &adminv1.HealthCheck{Group: string(r.Group), Name: r.Name, Status: status, Reason: reason}
	if !r.At.IsZero() {
		c.At, c.Took = timestamppb.New(r.At), durationpb.New(r.Took)
	}
	for _, change := range r.Changes {
		status, reason := healthStatus(r, change.Err)
		c.Changes = append(c.Changes, &adminv1.HealthChange{At: timestamppb.New(change.At), Status: status, Reason: reason})
	}
	return c
}

// healthStatus returns what a result of r's check means, now or before.
func healthStatus(r *health.Result, err error) (adminv1.HealthCheck_Status, string) {
	switch {
	case err == nil:
		return adminv1.HealthCheck_OK, ""
	case r.Informational:
		return adminv1.HealthCheck_WARNING, err.Error()
	default:
		return adminv1.HealthCheck_FAILED, err.Error()
	}
}

func (cp *ControlPlane) resources(proxy mesh.ID, kind adminv1.Kind) ([]*anypb.Any, bool) {
	desired, ok := cp.pipeline.Translator.Resources(proxy)
	if !ok {
		return nil, false
	}
	all := desired.Of(kinds[kind])
	bodies := make([]*anypb.Any, len(all))
	for i, r := range all {
		bodies[i] = r.Body
	}
	return bodies, true
}
