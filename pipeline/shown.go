package pipeline

import (
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/xds/resource"
)

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

// Streams returns the ADS streams, by proxy. replica is the name of this replica.
func (p *Pipeline) Streams(replica string) map[mesh.ID][]*adminv1.Stream {
	streams := map[mesh.ID][]*adminv1.Stream{}
	for _, s := range p.XDS.Status() {
		stream := &adminv1.Stream{Replica: replica, ConnectedSince: timestamppb.New(s.Connected), Delta: s.Delta,
			Records: s.Says.Records}
		for _, t := range s.Types {
			status := &adminv1.TypeStatus{Kind: kindOf(t.Type), Synced: s.Known && t.Pending == 0 && t.Unanswered.IsZero()}
			for _, n := range t.NACKs {
				status.Nacks = append(status.Nacks, &adminv1.Nack{Resource: n.Name, Version: n.Version, Reason: n.Reason,
					At: timestamppb.New(n.At)})
			}
			stream.Types = append(stream.Types, status)
		}
		streams[s.Node] = append(streams[s.Node], stream)
	}
	return streams
}

// Streaming returns the proxies that have an ADS stream.
func (p *Pipeline) Streaming() []mesh.ID {
	var all []mesh.ID
	for _, s := range p.XDS.Status() {
		all = append(all, s.Node)
	}
	return all
}

// Resources returns the resources of one kind that a proxy should have, sorted by name, and false if it is unknown.
func (p *Pipeline) Resources(proxy mesh.ID, kind adminv1.Kind) ([]*anypb.Any, bool) {
	desired, ok := p.Translator.Resources(proxy)
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
