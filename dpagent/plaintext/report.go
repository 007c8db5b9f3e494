package plaintext

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// Report returns everything counted since the agent started.
func (c *Counter) Report() *agentv1.Plaintext {
	select {
	case <-c.due: // this report includes everything due
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.open.expire(now)
	m := &agentv1.Plaintext{}
	for k, in := range c.inbounds {
		sources, others := in.report(now)
		m.Inbounds = append(m.Inbounds, &agentv1.PlaintextInbound{
			Port: k.port, Kind: k.kind, Requests: k.http, Sources: sources, Others: others.message(now),
			Probes: in.probes.message(now),
		})
	}
	slices.SortFunc(m.Inbounds, func(a, b *agentv1.PlaintextInbound) int {
		return cmp.Or(cmp.Compare(a.GetPort(), b.GetPort()), cmp.Compare(a.GetKind(), b.GetKind()))
	})
	return m
}

// report returns the sources with the most traffic, and the sum of the others.
func (in *inbound) report(now time.Time) (sources []*agentv1.PlaintextSource, others tally) {
	all := slices.Collect(maps.Keys(in.sources))
	slices.SortFunc(all, func(a, b netip.Addr) int {
		ta, tb := in.sources[a], in.sources[b]
		return cmp.Or(cmp.Compare(tb.count+uint64(tb.open), ta.count+uint64(ta.open)), tb.last.Compare(ta.last), a.Compare(b))
	})
	others = in.others
	for i, from := range all {
		if i >= maxSources {
			others.take(in.sources[from])
			continue
		}
		sources = append(sources, &agentv1.PlaintextSource{Address: from.String(), Tally: in.sources[from].message(now)})
	}
	return sources, others
}

// message returns the tally as a message, or nil if nothing was counted.
func (t *tally) message(now time.Time) *agentv1.PlaintextTally {
	if t.first.IsZero() {
		return nil
	}
	return &agentv1.PlaintextTally{Count: t.count, Open: t.open, First: durationpb.New(now.Sub(t.first)),
		Last: durationpb.New(now.Sub(t.last))}
}
