package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"maps"
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
	dataplanes     []string
	sources        map[netip.Addr]observed.PlaintextTally
	others, probes observed.PlaintextTally
}

func (p *strictPort) add(more observed.Plaintext) {
	for from, t := range more.Sources {
		sum := p.sources[from]
		sum.Add(t)
		p.sources[from] = sum
	}
	p.others.Add(more.Others)
	p.probes.Add(more.Probes)
}

// strictMesh is an admin.Options.Strict.
func (cp *ControlPlane) strictMesh(ctx context.Context, m *meshview.Mesh, streams map[mesh.ID][]*adminv1.Stream) *adminv1.StrictMesh {
	proxies, past, since := cp.agents.Plaintext(m.Spec.Name)
	found := &adminv1.StrictMesh{Mesh: m.Spec.Name, Mode: string(m.Spec.Mode()), Since: timestamppb.New(since), Proxies: uint32(m.Proxies.Len())}
	found.Gaps = cp.strictGaps(m, proxies, streams)
	found.Telling = found.GetProxies() - uint32(len(found.GetGaps()))
	if m.Spec.Mode() != mesh.ModePermissive {
		return found
	}
	ports := map[strictKey]*strictPort{}
	at := func(workload string, of observed.Plaintext) *strictPort {
		key := strictKey{workload, of.PlaintextPort}
		p := ports[key]
		if p == nil {
			p = &strictPort{sources: map[netip.Addr]observed.PlaintextTally{}}
			ports[key] = p
		}
		p.add(of)
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
	names := cp.strictNames(ctx, ports)
	for key, p := range ports {
		found.Ports = append(found.Ports, strictMessage(m, key, p, names))
	}
	slices.SortFunc(found.Ports, func(a, b *adminv1.StrictPort) int {
		return cmp.Or(lastOf(b).Compare(lastOf(a)), cmp.Compare(a.GetWorkload(), b.GetWorkload()), cmp.Compare(a.GetPort(), b.GetPort()))
	})
	return found
}

// lastOf returns when something has come to a port last.
func lastOf(p *adminv1.StrictPort) time.Time {
	var last time.Time
	tallies := []*adminv1.StrictTally{p.GetOthers(), p.GetProbes()}
	for _, s := range p.GetSources() {
		tallies = append(tallies, s.GetTally())
	}
	for _, t := range tallies {
		if t != nil && t.GetLast().AsTime().After(last) {
			last = t.GetLast().AsTime()
		}
	}
	return last
}

func strictMessage(m *meshview.Mesh, key strictKey, p *strictPort, names map[netip.Addr]strictName) *adminv1.StrictPort {
	slices.Sort(p.dataplanes)
	port := &adminv1.StrictPort{
		Workload: key.workload, Port: key.Port, Kind: strictKind(key.Kind), Requests: key.Requests,
		Services: servicesAt(m, p.dataplanes, key.Port), Dataplanes: p.dataplanes[:min(len(p.dataplanes), maxStrictNames)],
	}
	for from, t := range p.sources {
		source := &adminv1.StrictSource{Address: from.String(), Tally: tallyMessage(t)}
		names[from].write(source)
		port.Sources = append(port.Sources, source)
	}
	slices.SortFunc(port.Sources, func(a, b *adminv1.StrictSource) int {
		return cmp.Or(cmp.Compare(b.GetTally().GetCount(), a.GetTally().GetCount()), cmp.Compare(a.GetAddress(), b.GetAddress()))
	})
	others := p.others
	if len(port.GetSources()) > maxStrictSources {
		for _, source := range port.GetSources()[maxStrictSources:] {
			others.Add(p.sources[netip.MustParseAddr(source.GetAddress())])
		}
		port.Sources = port.GetSources()[:maxStrictSources]
	}
	port.Others, port.Probes = tallyMessage(others), tallyMessage(p.probes)
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

// strictGaps returns which proxies of a mesh do not tell what they get, sorted.
func (cp *ControlPlane) strictGaps(
	m *meshview.Mesh, telling map[mesh.ID]observed.ProxyPlaintext, streams map[mesh.ID][]*adminv1.Stream,
) []*adminv1.StrictGap {
	agents, states := cp.agents.Agents(), cp.agents.States()
	var gaps []*adminv1.StrictGap
	for name := range m.Proxies.All() {
		id := mesh.MakeID(m.Spec.Name, name)
		_, tells := telling[id]
		if reason := gapOf(tells, agents[id], states[id], newest(streams[id])); reason != "" {
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
func (cp *ControlPlane) strictNames(ctx context.Context, ports map[strictKey]*strictPort) map[netip.Addr]strictName {
	last := map[netip.Addr]time.Time{}
	for _, p := range ports {
		for from, t := range p.sources {
			if t.Last.After(last[from]) {
				last[from] = t.Last
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
