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
// again on the same stream.
type NACK struct {
	Type resource.Type
	// Name and Version are empty if the proxy named no resource. The resources of the response are then sent one by one, to
	// find out which one it refuses.
	Name, Version string
	// Reason is the proxy's error message.
	Reason string
	At     time.Time
}

// handleAck handles the ACK of a reply, or its NACK, which has a detail. The replies before it count as ACKed, too: a proxy
// answers in order, and one that skips an answer must not block its stream.
func (c *client) handleAck(t *topic, nonce string, detail *statuspb.Status) []NACK {
	for i, r := range t.inFlight {
		if r.nonce != nonce {
			continue
		}
		c.hasAnswered = true
		t.inFlight = slices.Delete(t.inFlight, 0, i+1)
		if len(t.inFlight) == 0 {
			t.inFlight = nil
		}
		if detail != nil {
			return c.refuse(r, detail.GetMessage())
		}
		t.acked = nonce
		return nil
	}
	return nil
}

// refuse finds out which resources of r are refused, and makes sure that the others are sent again without them. Envoy uses
// the good resources of a refused response, but does not name them when it reconnects, and then nothing could remove them.
func (c *client) refuse(r *reply, reason string) []NACK {
	t, now := r.topic, time.Now()
	bad := suspects(r.puts, reason)
	reason = shorten(reason)
	if len(r.puts) == 0 {
		return []NACK{{Type: t.kind, Reason: reason, At: now}} // no resource can be left out
	}
	var nacks []NACK
	for i, p := range r.puts {
		g := r.before[i]
		g.uncertain, g.alone = true, len(bad) == 0
		if bad[p.Name] {
			n := NACK{Type: t.kind, Name: p.Name, Version: p.Version, Reason: reason, At: now}
			nacks = append(nacks, n)
			t.remember(n)
			g.mustAnswer = false // since Envoy refused it, it no longer waits for a response
		}
		c.restore(t, p.Name, g)
	}
	for i, name := range r.removed {
		c.restore(t, name, r.before[len(r.puts)+i])
	}
	if len(bad) == 0 {
		nacks = append(nacks, NACK{Type: t.kind, Reason: reason, At: now})
	}
	return nacks
}

// remember stores a refused version, and drops the oldest one of the name if there are too many.
func (t *topic) remember(n NACK) {
	if t.refused == nil {
		t.refused = map[string][]NACK{}
	}
	list := append(t.refused[n.Name], n)
	t.refused[n.Name] = list[max(0, len(list)-keepRefused):]
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

// suspects returns the names of the refused resources. If the response had one resource, it is that one. Otherwise the names
// are in Envoy's error message. The message either lists them ("Error adding/updating listener(s) a: why\nb: why", or
// "cluster(s) a: why, b: why"), or prints the first invalid resource in protobuf text form. The result is empty if it does
// neither.
func suspects(puts []*resource.Resource, reason string) map[string]bool {
	bad := map[string]bool{}
	if len(puts) == 1 {
		bad[puts[0].Name] = true
		return bad
	}
	if _, list, ok := strings.Cut(reason, "(s) "); ok && strings.HasPrefix(reason, "Error adding/updating ") {
		for _, p := range puts {
			said := p.Name + ": "
			if strings.HasPrefix(list, said) || strings.Contains(list, ", "+said) || strings.Contains(list, "\n"+said) {
				bad[p.Name] = true
			}
		}
		return bad
	}
	if strings.Contains(reason, "validation failed") {
		if name := firstNamed(puts, reason); name != "" {
			bad[name] = true
		}
	}
	return bad
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
