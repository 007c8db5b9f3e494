package strict

import (
	"cmp"
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
	// maxNames limits the services and Dataplanes of a port, maxSources its sources.
	maxNames   = 20
	maxSources = 50
)

// portKey is a port of a workload, and why STRICT would reject its traffic.
type portKey struct {
	workload string
	observed.PlaintextPort
}

// portSums is the traffic to the proxies of a workload.
type portSums struct {
	observed.Plaintext
	dataplanes []string
}

// ports are the ports of a mesh.
type ports map[portKey]*portSums

// sorted returns the keys, the port with the latest traffic first.
func (p ports) sorted() []portKey {
	last := make(map[portKey]time.Time, len(p))
	for k, of := range p {
		last[k] = of.Last()
	}
	return slices.SortedFunc(maps.Keys(p), func(a, b portKey) int {
		return cmp.Or(last[b].Compare(last[a]), cmp.Compare(a.workload, b.workload), cmp.Compare(a.Port, b.Port))
	})
}

// portsOf adds up the traffic to current and past proxies, by workload and port.
func portsOf(proxies map[mesh.ID]observed.ProxyPlaintext, past []observed.PastPlaintext) ports {
	all := ports{}
	at := func(workload string, of observed.Plaintext) *portSums {
		k := portKey{workload, of.PlaintextPort}
		p := all[k]
		if p == nil {
			p = &portSums{Plaintext: observed.NewPlaintext(of.PlaintextPort)}
			all[k] = p
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
	return all
}

func messageOf(m *meshview.Mesh, k portKey, p *portSums, owners map[netip.Addr]owner) *adminv1.StrictPort {
	slices.Sort(p.dataplanes)
	message := &adminv1.StrictPort{
		Workload: k.workload, Port: k.Port, Kind: kindOf(k.Kind), Requests: k.Requests,
		Services: servicesAt(m, p.dataplanes, k.Port), Dataplanes: p.dataplanes[:min(len(p.dataplanes), maxNames)],
	}
	others := p.Others
	most := slices.SortedFunc(maps.Keys(p.Sources), func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(p.Sources[b].Count, p.Sources[a].Count), a.Compare(b))
	})
	for i, from := range most {
		if i >= maxSources {
			others.Add(p.Sources[from])
			continue
		}
		source := &adminv1.StrictSource{Address: from.String(), Tally: tallyMessage(p.Sources[from])}
		owners[from].write(source)
		message.Sources = append(message.Sources, source)
	}
	message.Others, message.Probes = tallyMessage(others), tallyMessage(p.Probes)
	return message
}

func kindOf(k agentv1.PlaintextInbound_Kind) adminv1.StrictPort_Kind {
	switch k {
	case agentv1.PlaintextInbound_PLAINTEXT:
		return adminv1.StrictPort_PLAINTEXT
	case agentv1.PlaintextInbound_APPLICATION_TLS:
		return adminv1.StrictPort_APPLICATION_TLS
	case agentv1.PlaintextInbound_NO_INBOUND:
		return adminv1.StrictPort_NO_INBOUND
	}
	return adminv1.StrictPort_KIND_UNSPECIFIED // from a newer agent
}

// tallyMessage returns nil without traffic.
func tallyMessage(t observed.PlaintextTally) *adminv1.StrictTally {
	if t.Last.IsZero() {
		return nil
	}
	return &adminv1.StrictTally{Count: t.Count, Open: t.Open, First: timestamppb.New(t.First),
		Last: timestamppb.New(t.Last)}
}

// servicesAt returns the services that have a port of these Dataplanes as an endpoint.
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
	return all[:min(len(all), maxNames)]
}
