package xds

import (
	"cmp"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// ProxyStatus describes one stream.
type ProxyStatus struct {
	// Node is the node id of the proxy.
	Node string
	// Says is the content of the proxy's metadata.
	Says resource.Metadata
	// Delta is true for the delta protocol, and false for state of the world.
	Delta     bool
	Connected time.Time
	// Known is false while the source does not know the proxy yet, so that there is nothing to send.
	Known bool
	// Late means that a response has waited for its ACK or NACK for longer than 30 s. The proxy is still served.
	Late bool
	// Types are the types that the proxy has requested, in the order of resource.Types.
	Types []TypeStatus
}

// TypeStatus describes one type of resource on a stream.
type TypeStatus struct {
	Type resource.Type
	// Sent and Acked are the nonces of the last response and of the last ACKed response, or "".
	Sent, Acked string
	// Unanswered is when the oldest response that is neither ACKed nor NACKed was sent; zero if there is no such response.
	Unanswered time.Time
	// Pending counts the resources that the proxy lacks, refused ones included. It leaves out removals that wait for
	// listeners to drain.
	Pending int
	// NACKs are the resources whose newest version is refused, sorted by name.
	NACKs []NACK
}

// status describes the types that the proxy has requested.
func (p *proxy) status() []TypeStatus {
	var all []TypeStatus
	for _, s := range p.subscriptions {
		if !s.requested {
			continue
		}
		status := TypeStatus{
			Type: s.kind, Sent: s.lastNonce, Acked: s.acked,
			Pending: len(s.pending), NACKs: p.nacks(s),
		}
		if len(s.inFlight) > 0 {
			status.Unanswered = s.inFlight[0].sent
		}
		all = append(all, status)
	}
	return all
}

// nacks returns the NACKs of the desired resources. These resources are withheld from the proxy.
func (p *proxy) nacks(s *subscription) []NACK {
	var all []NACK
	for name, list := range s.refused {
		if n := list.find(versionOf(p.get(s, name))); n != nil && s.subscribes(name) {
			all = append(all, *n)
		}
	}
	slices.SortFunc(all, func(a, b NACK) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// unanswered returns when the oldest response without an ACK or NACK was sent; zero if there is no such response.
func (p *proxy) unanswered() time.Time {
	var oldest time.Time
	for _, s := range p.subscriptions {
		if len(s.inFlight) > 0 && (oldest.IsZero() || s.inFlight[0].sent.Before(oldest)) {
			oldest = s.inFlight[0].sent
		}
	}
	return oldest
}
