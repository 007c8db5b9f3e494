package xds

import (
	"slices"
	"strings"
	"time"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// maxReason is how many bytes of a proxy's words are kept.
const maxReason = 2048

// NACK is a resource that a proxy refused. It keeps the last one that it took, and is not sent this version again on
// the same stream.
type NACK struct {
	Type resource.Type
	// Name and Version are empty where the proxy named no resource: the suspects are then sent one by one.
	Name, Version string
	// Reason is what the proxy says.
	Reason string
	At     time.Time
}

// answer takes the ACK or NACK of a reply. One that answers to a later reply ACKs those before it: a proxy answers in
// order, and one that leaves answers out shall not wait for ever.
func (c *client) answer(t *topic, nonce string, detail *statuspb.Status) []NACK {
	for i, r := range t.inFlight {
		if r.nonce != nonce {
			continue
		}
		c.heard = true
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

// refuse works out which resources of r are refused, and has everything else of r sent again without them: what
// Envoy took out of a refused response it would not name when it reconnects, and then nothing could remove it.
func (c *client) refuse(r *reply, reason string) []NACK {
	t, now := r.topic, time.Now()
	bad := suspects(r.puts, reason)
	reason = cut(reason)
	if len(r.puts) == 0 {
		return []NACK{{Type: t.kind, Reason: reason, At: now}} // nothing was sent that could be left out
	}
	var nacks []NACK
	for i, p := range r.puts {
		g := r.had[i]
		g.unsure, g.alone = true, len(bad) == 0
		if bad[p.Name] {
			n := NACK{Type: t.kind, Name: p.Name, Version: p.Version, Reason: reason, At: now}
			nacks = append(nacks, n)
			t.remember(n)
			g.asked = false // the refusal ends Envoy's wait for an answer
		}
		c.restore(t, p.Name, g)
	}
	for i, name := range r.gone {
		c.restore(t, name, r.had[len(r.puts)+i])
	}
	if len(bad) == 0 {
		nacks = append(nacks, NACK{Type: t.kind, Reason: reason, At: now})
	}
	return nacks
}

func (t *topic) remember(n NACK) {
	if t.refused == nil {
		t.refused = map[string][]NACK{}
	}
	list := append(t.refused[n.Name], n)
	t.refused[n.Name] = list[max(0, len(list)-keepRefused):]
}

// restore puts back what the client had of name before a reply that it refused.
func (c *client) restore(t *topic, name string, g gap) {
	if !t.subscribes(name) {
		return
	}
	for _, later := range t.inFlight {
		if i := later.indexOf(name); i >= 0 {
			later.had[i].version, later.had[i].last, later.had[i].unsure = g.version, g.last, g.unsure
			return
		}
	}
	g.asked = g.asked || t.gaps[name].asked
	t.note(name, g, c.get(t, name))
}

// suspects finds in Envoy's words the names of what it refused. It knows three forms: a response of one resource; the
// list of "Error adding/updating listener(s) a: why\nb: why" or "cluster(s) a: why, b: why"; and the text form of the
// first resource that broke the rules of its fields. None is found where the text names none.
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

// firstNamed returns the name that comes first as name: "x" or cluster_name: "x".
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

// indexField finds a field of the text form. The number of spaces in it is not fixed.
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

// cut keeps the beginning and the end of what a proxy says: Envoy may print a whole resource before the reason.
func cut(reason string) string {
	if len(reason) <= maxReason {
		return strings.ToValidUTF8(reason, "?")
	}
	return strings.ToValidUTF8(reason[:maxReason/2], "") + " … " + strings.ToValidUTF8(reason[len(reason)-maxReason/2:], "")
}
