package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/agents/observed"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// Limits of an answer about mode STRICT.
const (
	// maxStrictNames of services and Dataplanes of a port, and maxStrictSources of its sources.
	maxStrictNames   = 20
	maxStrictSources = 50
)

// strictKey is a port of a workload, and why STRICT would refuse what comes to it.
type strictKey struct {
	workload string
	observed.PlaintextPort
}

// strictPort is what has come to the proxies of a workload.
type strictPort struct {
	observed.Plaintext
	dataplanes []string
}

// strictPorts are those of a mesh.
type strictPorts map[strictKey]*strictPort

// strictMeshes is an admin.Options.Strict. Whose an address is that has sent is found out once for all meshes.
func (cp *ControlPlane) strictMeshes(ctx context.Context, meshes []*meshview.Mesh, streams map[mesh.ID][]*adminv1.Stream) []*adminv1.StrictMesh {
	told := tellers{agents: cp.agents.Agents(), states: cp.agents.States(), streams: streams}
	found, ports := make([]*adminv1.StrictMesh, len(meshes)), make([]strictPorts, len(meshes))
	for i, m := range meshes {
		proxies, past, since := cp.agents.Plaintext(m.Spec.Name)
		gaps := told.gaps(m, proxies)
		found[i] = &adminv1.StrictMesh{
			Mesh: m.Spec.Name, Mode: string(m.Spec.Mode()), Since: timestamppb.New(since),
			Proxies: uint32(m.Proxies.Len()), Telling: uint32(m.Proxies.Len() - len(gaps)), Gaps: gaps,
		}
		if m.Spec.Mode() == mesh.ModePermissive {
			ports[i] = strictPortsOf(proxies, past)
		}
	}
	names := cp.strictNames(ctx, ports)
	for i, m := range meshes {
		for _, key := range ports[i].sorted() {
			found[i].Ports = append(found[i].Ports, strictMessage(m, key, ports[i][key], names))
		}
	}
	return found
}

// sorted returns the keys. That to which something has come last comes first.
func (p strictPorts) sorted() []strictKey {
	last := make(map[strictKey]time.Time, len(p))
	for key, port := range p {
		last[key] = port.Last()
	}
	return slices.SortedFunc(maps.Keys(p), func(a, b strictKey) int {
		return cmp.Or(last[b].Compare(last[a]), cmp.Compare(a.workload, b.workload), cmp.Compare(a.Port, b.Port))
	})
}

// strictPortsOf adds up what proxies get, and those that are gone got, by workload and port.
func strictPortsOf(proxies map[mesh.ID]observed.ProxyPlaintext, past []observed.PastPlaintext) strictPorts {
	ports := strictPorts{}
	at := func(workload string, of observed.Plaintext) *strictPort {
		key := strictKey{workload, of.PlaintextPort}
		p := ports[key]
		if p == nil {
			p = &strictPort{Plaintext: observed.NewPlaintext(of.PlaintextPort)}
			ports[key] = p
		}
		p.Merge(of, math.MaxInt)
		return p
	}
	for id, counted := range proxies {
		_, name := mesh.SplitID(id)
		for _, of := range counted.Ports {
			p := at(counted.Workload, of)
			p.dataplanes = append(p.dataplanes, name)
		}
	}
	for _, of := range past {
		at(of.Workload, of.Plaintext)
	}
	return ports
}

func strictMessage(m *meshview.Mesh, key strictKey, p *strictPort, names map[netip.Addr]strictName) *adminv1.StrictPort {
	slices.Sort(p.dataplanes)
	port := &adminv1.StrictPort{
		Workload: key.workload, Port: key.Port, Kind: strictKind(key.Kind), Requests: key.Requests,
		Services: servicesAt(m, p.dataplanes, key.Port), Dataplanes: p.dataplanes[:min(len(p.dataplanes), maxStrictNames)],
	}
	others := p.Others
	most := slices.SortedFunc(maps.Keys(p.Sources), func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(p.Sources[b].Count, p.Sources[a].Count), a.Compare(b))
	})
	for i, from := range most {
		if i >= maxStrictSources {
			others.Add(p.Sources[from])
			continue
		}
		source := &adminv1.StrictSource{Address: from.String(), Tally: tallyMessage(p.Sources[from])}
		names[from].write(source)
		port.Sources = append(port.Sources, source)
	}
	port.Others, port.Probes = tallyMessage(others), tallyMessage(p.Probes)
	return port
}

func strictKind(k agentv1.PlaintextInbound_Kind) adminv1.StrictPort_Kind {
	switch k {
	case agentv1.PlaintextInbound_PLAINTEXT:
		return adminv1.StrictPort_PLAINTEXT
	case agentv1.PlaintextInbound_APPLICATION_TLS:
		return adminv1.StrictPort_APPLICATION_TLS
	case agentv1.PlaintextInbound_NO_INBOUND:
		return adminv1.StrictPort_NO_INBOUND
	}
	return adminv1.StrictPort_KIND_UNSPECIFIED // a newer agent knows more
}

// tallyMessage returns nil if nothing has come.
func tallyMessage(t observed.PlaintextTally) *adminv1.StrictTally {
	if t.Last.IsZero() {
		return nil
	}
	return &adminv1.StrictTally{Count: t.Count, Open: t.Open, First: timestamppb.New(t.First), Last: timestamppb.New(t.Last)}
}

// servicesAt returns the services of which a port of these Dataplanes is an endpoint.
func servicesAt(m *meshview.Mesh, dataplanes []string, port uint32) []string {
	var all []string
	for name, svc := range m.Services.All() {
		if slices.ContainsFunc(svc.Endpoints, func(e meshview.Endpoint) bool {
			_, ours := slices.BinarySearch(dataplanes, e.Proxy)
			return ours && uint32(e.Address.Port()) == port
		}) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all[:min(len(all), maxStrictNames)]
}

// tellers are the agents and Envoys of all meshes.
type tellers struct {
	agents  map[mesh.ID]*adminv1.Agent
	states  map[mesh.ID]*adminv1.AgentState
	streams map[mesh.ID][]*adminv1.Stream
}

// gaps returns which proxies of a mesh do not tell what they get, sorted.
func (t *tellers) gaps(m *meshview.Mesh, telling map[mesh.ID]observed.ProxyPlaintext) []*adminv1.StrictGap {
	var gaps []*adminv1.StrictGap
	for name := range m.Proxies.All() {
		id := mesh.MakeID(m.Spec.Name, name)
		_, tells := telling[id]
		if reason := gapOf(tells, t.agents[id], t.states[id], newest(t.streams[id])); reason != "" {
			gaps = append(gaps, &adminv1.StrictGap{Dataplane: name, Reason: reason})
		}
	}
	slices.SortFunc(gaps, func(a, b *adminv1.StrictGap) int { return cmp.Compare(a.GetDataplane(), b.GetDataplane()) })
	return gaps
}

// newest returns the stream that was opened last, nil of none: those before it are of the same Envoy, or of one that is gone.
func newest(streams []*adminv1.Stream) *adminv1.Stream {
	if len(streams) == 0 {
		return nil
	}
	return slices.MaxFunc(streams, func(a, b *adminv1.Stream) int {
		return a.GetConnectedSince().AsTime().Compare(b.GetConnectedSince().AsTime())
	})
}

// gapOf returns why a proxy does not tell what it gets, "" if it does. agent is nil without a session, and stream without one of Envoy.
func gapOf(tells bool, agent *adminv1.Agent, state *adminv1.AgentState, stream *adminv1.Stream) string {
	switch {
	case agent != nil && !slices.Contains(agent.GetFeatures(), agentv1.FeaturePlaintext):
		return fmt.Sprintf("its agent of version %s is too old to count plain text: restart it with a newer one", agent.GetVersion())
	case agent != nil && !tells:
		return "its agent has just connected, and has not said yet what it has counted"
	case agent != nil && agent.GetEnvoyDown() != "":
		return "its Envoy does not run: " + agent.GetEnvoyDown()
	case agent != nil && stream == nil:
		return "its Envoy is not connected"
	case agent != nil && !stream.GetRecords():
		return "its Envoy was started when its agent, or the control plane, was too old to record plain text: restart it"
	case agent != nil:
		return ""
	case state.GetPhase() == adminv1.AgentState_NEVER_JOINED:
		return "its agent has never joined"
	case state.GetPhase() == adminv1.AgentState_WAITING:
		return "its agent waits to join: " + state.GetRefusal()
	}
	return "its agent is not connected"
}

// strictName is whose an address is.
type strictName struct {
	mesh, dataplane, workload string
	podAt
}

func (n strictName) write(s *adminv1.StrictSource) {
	s.Mesh, s.Dataplane, s.Workload, s.Pod, s.Node = n.mesh, n.dataplane, n.workload, n.pod, n.node
}

// strictNames finds out whose the addresses are that have sent.
func (cp *ControlPlane) strictNames(ctx context.Context, meshes []strictPorts) map[netip.Addr]strictName {
	last := map[netip.Addr]time.Time{}
	for _, ports := range meshes {
		for _, p := range ports {
			for from, t := range p.Sources {
				if t.Last.After(last[from]) {
					last[from] = t.Last
				}
			}
		}
	}
	names := map[netip.Addr]strictName{}
	for _, m := range cp.pipeline.Builder.View().Meshes {
		for _, p := range m.Proxies.All() {
			address, err := netip.ParseAddr(p.Dataplane.Spec.Networking.Address)
			if _, asked := last[address]; err != nil || !asked {
				continue
			}
			name := strictName{mesh: m.Spec.Name, dataplane: p.Dataplane.Name, workload: mesh.WorkloadText(p.Dataplane.SPIFFEPath())}
			if other := names[address]; other.dataplane == "" || p.ID() < mesh.MakeID(other.mesh, other.dataplane) { // several may share a machine
				names[address] = name
			}
		}
	}
	if cp.connection.podsAt == nil {
		return names
	}
	maps.DeleteFunc(last, func(from netip.Addr, _ time.Time) bool { return names[from].dataplane != "" })
	for from, pod := range cp.connection.podsAt(ctx, last) {
		names[from] = strictName{podAt: pod}
	}
	return names
}
