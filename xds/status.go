package xds

import (
	"cmp"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// ProxyStatus describes one stream, for people.
type ProxyStatus struct {
	// Node is the id that the proxy gave.
	Node string
	// Delta says which of the two protocols it speaks.
	Delta     bool
	Connected time.Time
	// Known is false while there is nothing to send because the proxy is not in the view yet.
	Known bool
	// Late says that the proxy has not answered a response for longer than Options.AckTimeout. It is still served.
	Late bool
	// Types that it asked for, in the order in which they are sent.
	Types []TypeStatus
}

// TypeStatus describes one type of resource on a stream.
type TypeStatus struct {
	Type resource.Type
	// Sent and Acked are the nonces of the last response and of the last one that was ACKed, "" if there is none.
	Sent, Acked string
	// Unanswered is when the oldest response was sent that was neither ACKed nor NACKed; zero if there is none.
	Unanswered time.Time
	// Pending counts the resources that the proxy lacks, refused ones included.
	Pending int
	// NACKs are the resources whose newest version is refused, sorted by name.
	NACKs []NACK
}

// status describes the topics that were asked for.
func (c *client) status() []TypeStatus {
	var all []TypeStatus
	for _, t := range c.topics {
		if !t.begun {
			continue
		}
		s := TypeStatus{
			Type: t.kind, Sent: t.lastNonce, Acked: t.acked,
			Pending: len(t.gaps), NACKs: c.nacks(t),
		}
		if len(t.inFlight) > 0 {
			s.Unanswered = t.inFlight[0].sent
		}
		all = append(all, s)
	}
	return all
}

// nacks returns what is withheld from the client because it refused it.
func (c *client) nacks(t *topic) []NACK {
	var all []NACK
	for name, list := range t.refused {
		now := c.get(t, name)
		for _, n := range list {
			if t.subscribes(name) && n.Version == versionOf(now) {
				all = append(all, n)
			}
		}
	}
	slices.SortFunc(all, func(a, b NACK) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// unanswered returns when the oldest unanswered response was sent, zero if there is none.
func (c *client) unanswered() time.Time {
	var oldest time.Time
	for _, t := range c.topics {
		if len(t.inFlight) > 0 && (oldest.IsZero() || t.inFlight[0].sent.Before(oldest)) {
			oldest = t.inFlight[0].sent
		}
	}
	return oldest
}
