package xds

import (
	"slices"
	"strings"
	"time"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// maxReason is how many bytes of a proxy's error message are kept.
const maxReason = 2048

// NACK is a resource that a proxy refused. The proxy keeps the last version that it accepted. The refused version is not sent
// again on the same stream, unless the reason is the proxy's environment.
type NACK struct {
	Type resource.Type
	// Name and Version are empty if the proxy named no resource. The resources of the response are then sent in smaller
	// groups, to find out which one it refuses.
	Name, Version string
	// Reason is the proxy's error message.
	Reason string
	At     time.Time
	// Attempts counts how often the proxy has refused this version.
	Attempts int
	// RetryAt is when the version is sent again, zero if it is not.
	RetryAt time.Time

	retrying bool // it is, or may be, sent again
}

// handleAck handles the ACK of a reply, or its NACK, which has a detail. The replies before it count as ACKed, too: a proxy
// answers in order, and one that skips an answer must not block its stream.
func (c *client) handleAck(t *topic, nonce string, detail *statuspb.Status) []NACK {
	for i, r := range t.inFlight {
		if r.nonce != nonce {
			continue
		}
		c.hasAnswered, t.answered = true, true
		t.inFlight = slices.Delete(t.inFlight, 0, i+1)
		if len(t.inFlight) == 0 {
			t.inFlight = nil
		}
		if detail != nil {
			return c.refuse(r, detail.GetMessage())
		}
		t.acked = nonce
		for _, p := range r.puts {
			t.accepted(p)
		}
		return nil
	}
	return nil
}

// refuse finds out which resources of r are refused, and makes sure that the others are sent again without them. Envoy uses
// the good resources of a refused response, but does not name them when it reconnects, and then nothing could remove them.
//
// If the reason names no resource, the first half of the resources becomes one group of suspects and the second half another
// one. Each is sent as a response of its own, and halved again if it is refused: that takes few responses even if a
// response repeats all resources of a type, as in the state of the world.
func (c *client) refuse(r *reply, reason string) []NACK {
	t, now := r.topic, c.now()
	if len(r.puts) == 0 {
		c.retryRemovals(r)
		return []NACK{{Type: t.kind, Reason: shorten(reason), At: now, Attempts: 1}} // no resource can be left out
	}
	bad := refusedBy(r.puts, reason)
	if len(bad) == 0 {
		c.suspect(r)
	}
	var nacks []NACK
	for i, p := range r.puts {
		g := r.before[i]
		g.uncertain = true
		if why, ok := bad[p.Name]; ok {
			nacks = append(nacks, t.remember(NACK{Type: t.kind, Name: p.Name, Version: p.Version, Reason: shorten(why), At: now}, g.last))
			g.mustAnswer = false // since Envoy refused it, it no longer waits for a response
			g.suspect = 0
		}
		c.restore(t, p.Name, g)
	}
	for i, name := range r.removed {
		c.restore(t, name, r.before[len(r.puts)+i])
	}
	if len(bad) == 0 {
		nacks = append(nacks, NACK{Type: t.kind, Reason: shorten(reason), At: now, Attempts: 1})
	}
	return nacks
}

// suspect puts the resources of r into two new groups of suspects.
func (c *client) suspect(r *reply) {
	for i := range r.puts {
		r.before[i].suspect = c.suspects + 1
		if i >= (len(r.puts)+1)/2 {
			r.before[i].suspect++
		}
	}
	c.suspects += 2
}

// restore puts back g, the gap of name before a reply that the client refused. If a later reply in flight has the name, g is
// kept there, since the client may refuse that one, too.
func (c *client) restore(t *topic, name string, g gap) {
	if !t.subscribes(name) {
		return
	}
	for _, later := range t.inFlight {
		if i := later.indexOf(name); i >= 0 {
			later.before[i].version, later.before[i].last, later.before[i].uncertain = g.version, g.last, g.uncertain
			return
		}
	}
	g.mustAnswer = g.mustAnswer || t.gaps[name].mustAnswer
	t.setGap(name, g, c.get(t, name))
}

// refusedBy returns the refused resources of a response, each with its part of Envoy's error message. The message either lists
// them ("Error adding/updating listener(s) a: why\nb: why", or "cluster(s) a: why, b: why"), or prints the first invalid
// resource in protobuf text form, or names none. If it names none and the response had one resource, it is that one; else the
// result is empty.
func refusedBy(puts []*resource.Resource, reason string) map[string]string {
	if _, list, ok := strings.Cut(reason, "(s) "); ok && strings.HasPrefix(reason, "Error adding/updating ") {
		if reasons := listed(puts, list); len(reasons) > 0 {
			return reasons
		}
	}
	if len(puts) == 1 {
		return map[string]string{puts[0].Name: reason}
	}
	if strings.Contains(reason, "validation failed") {
		if name := firstNamed(puts, reason); name != "" {
			return map[string]string{name: reason}
		}
	}
	return nil
}

// listed splits Envoy's list of refused resources, "a: why, b: why" or "a: why\nb: why", by the names of those that were sent.
func listed(puts []*resource.Resource, list string) map[string]string {
	type entry struct {
		name string
		at   int // where the name begins
	}
	var entries []entry
	for _, p := range puts {
		said := p.Name + ": "
		if strings.HasPrefix(list, said) {
			entries = append(entries, entry{p.Name, 0})
			continue
		}
		for _, separator := range []string{", ", "\n"} {
			if i := strings.Index(list, separator+said); i >= 0 {
				entries = append(entries, entry{p.Name, i + len(separator)})
				break
			}
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return a.at - b.at })
	reasons := map[string]string{}
	for i, e := range entries {
		end := len(list)
		if i+1 < len(entries) {
			end = entries[i+1].at
		}
		reasons[e.name] = strings.TrimRight(list[e.at+len(e.name)+len(": "):end], ", \n")
	}
	return reasons
}

// firstNamed returns the name that comes first in reason in the form name: "x" or cluster_name: "x", or "" if there is none.
func firstNamed(puts []*resource.Resource, reason string) string {
	first, at := "", len(reason)
	for _, p := range puts {
		for _, field := range []string{"name:", "cluster_name:"} {
			i := indexField(reason, field, p.Name)
			if i >= 0 && i < at {
				first, at = p.Name, i
			}
		}
	}
	return first
}

// indexField returns the index of a field with that value in protobuf text form, or -1 if there is none. The text form may
// have one or more spaces after the colon.
func indexField(text, field, value string) int {
	for from := 0; ; {
		i := strings.Index(text[from:], field)
		if i < 0 {
			return -1
		}
		i += from
		from = i + len(field)
		begins := i == 0 || strings.ContainsRune(" {\n", rune(text[i-1]))
		if begins && strings.HasPrefix(strings.TrimLeft(text[from:], " "), `"`+value+`"`) {
			return i
		}
	}
}

// shorten keeps only the beginning and the end of a long text: Envoy may print a whole resource before the reason.
func shorten(reason string) string {
	if len(reason) <= maxReason {
		return strings.ToValidUTF8(reason, "?")
	}
	return strings.ToValidUTF8(reason[:maxReason/2], "") + " … " + strings.ToValidUTF8(reason[len(reason)-maxReason/2:], "")
}
