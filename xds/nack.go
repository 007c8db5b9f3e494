package xds

import (
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// maxReason limits the bytes kept of a proxy's error message, maxLogged the bytes logged.
const (
	maxReason = 2048
	maxLogged = 512
)

// NACK is a resource that a proxy refused. The proxy keeps the last version that it accepted. The refused version is
// not sent again on the same stream, unless the proxy's environment caused the refusal.
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
	// RetryAt is when the version is sent again; zero if it is not.
	RetryAt time.Time

	retrying bool // the version is or may be sent again
}

// handleAck handles the ACK or the NACK of a response; a NACK has a detail. Earlier responses then count as ACKed, too:
// a proxy answers in order, and a skipped answer must not block the stream.
func (p *proxy) handleAck(s *subscription, nonce string, detail *statuspb.Status) []NACK {
	for i, r := range s.inFlight {
		if r.nonce != nonce {
			continue
		}
		p.hasAnswered, s.hasAnswered = true, true
		p.acked = detail == nil
		for _, answered := range s.inFlight[:i+1] {
			p.inFlightBytes -= answered.size
		}
		s.inFlight = slices.Delete(s.inFlight, 0, i+1)
		if len(s.inFlight) == 0 {
			s.inFlight = nil
		}
		if detail != nil {
			return p.refuse(r, detail.GetMessage())
		}
		s.acked = nonce
		for _, m := range r.resources {
			s.accepted(m.resource)
		}
		return nil
	}
	return nil
}

// refuse finds out which resources of r are refused, and makes sure that the others are sent again without them. Envoy
// uses the good resources of a refused response, but does not name them when it reconnects, so nothing could remove
// them then.
//
// If the reason names no resource, the first half of the resources becomes one group of suspects and the second half
// another one. Each group is sent as a separate response, and halved again if it is refused. This takes few responses
// even if a response repeats all resources of a type, as in the state of the world.
func (p *proxy) refuse(r *response, reason string) []NACK {
	s, now := r.subscription, p.now()
	p.asked += len(r.resources) + nackWork*namesPerWork
	if len(r.resources) == 0 {
		p.retryRemovals(r)
		return []NACK{{Type: s.kind, Reason: shorten(reason), At: now, Attempts: 1}} // no resource can be left out
	}
	bad := refusedBy(r.resources, reason)
	if len(bad) == 0 {
		p.suspect(r)
	}
	var nacks []NACK
	for _, m := range r.resources {
		u := m.before
		u.uncertain = true
		if why, ok := bad[m.name]; ok {
			nacks = append(nacks, s.remember(NACK{Type: s.kind, Name: m.name, Version: m.resource.Version, Reason: shorten(why),
				At: now}, u.last))
			u.mustMention = false // since Envoy refused it, it no longer waits for a response
			u.suspect = 0
		} else if !isInvalid(reason) && !s.mayUse(m.name, u) {
			u.mayUse = m.resource.Version // Envoy uses the good resources of a refused response
		}
		p.restore(s, m.name, u)
	}
	for _, m := range r.removed {
		p.restore(s, m.name, m.before)
	}
	if len(bad) == 0 {
		nacks = append(nacks, NACK{Type: s.kind, Reason: shorten(reason), At: now, Attempts: 1})
	}
	return nacks
}

// suspect puts the resources of r into two new groups of suspects.
func (p *proxy) suspect(r *response) {
	for i := range r.resources {
		u := &r.resources[i].before
		u.suspect = p.suspects + 1
		if i >= (len(r.resources)+1)/2 {
			u.suspect++
		}
	}
	p.suspects += 2
}

// restore restores u, the pending update of a name before a response that the proxy refused. If a later response in
// flight has the name, u is stored there, since the proxy may refuse that one, too.
func (p *proxy) restore(s *subscription, name string, u update) {
	if !s.subscribes(name) {
		return
	}
	for _, later := range s.inFlight {
		if m := later.mention(name); m != nil {
			m.before.version, m.before.last, m.before.uncertain, m.before.mayUse = u.version, u.last, u.uncertain, u.mayUse
			return
		}
	}
	u.mustMention = u.mustMention || s.pending[name].mustMention
	s.setPending(name, u, p.get(s, name))
}

// refusedBy returns the refused resources of a response, each with its part of Envoy's error message. The message lists
// them ("Error adding/updating listener(s) a: why
// b: why", or "cluster(s) a: why, b: why"), or prints the first invalid resource in protobuf text form, or names none.
// If it names none and the response had one resource, the result is that resource; otherwise it is empty.
func refusedBy(sent []mention, reason string) map[string]string {
	names := make(map[string]bool, len(sent))
	for i := range sent {
		names[sent[i].name] = true
	}
	if _, list, ok := strings.Cut(reason, "(s) "); ok && strings.HasPrefix(reason, "Error adding/updating ") {
		if reasons := listed(names, list); len(reasons) > 0 {
			return reasons
		}
	}
	if len(sent) == 1 {
		return map[string]string{sent[0].name: reason}
	}
	if isInvalid(reason) {
		if name := firstNamed(names, reason); name != "" {
			return map[string]string{name: reason}
		}
	}
	return nil
}

// isInvalid reports whether the proxy refused a response while reading it, before it used any resource.
func isInvalid(reason string) bool { return strings.Contains(reason, "validation failed") }

// listed splits Envoy's list of refused resources, "a: why, b: why" or "a: why
// b: why", by the names of the sent resources.
func listed(sent map[string]bool, list string) map[string]string {
	type entry struct {
		name string
		at   int // where the name begins
	}
	var entries []entry
	found := map[string]bool{}
	for at := 0; at < len(list); at = nextEntry(list, at) {
		name, _, ok := strings.Cut(list[at:min(len(list), at+maxNameLength+2)], ": ")
		if ok && sent[name] && !found[name] {
			entries, found[name] = append(entries, entry{name, at}), true
		}
	}
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

// nextEntry returns where the next name may begin in a list after at, or the list's length.
func nextEntry(list string, at int) int {
	for ; at < len(list); at++ {
		switch {
		case list[at] == '\n':
			return at + 1
		case strings.HasPrefix(list[at:], ", "):
			return at + 2
		}
	}
	return at
}

// firstNamed returns the name that comes first in reason in the form name: "x" or cluster_name: "x", or "" if no name
// does. The text form of protobuf may have one or more spaces after the colon.
func firstNamed(sent map[string]bool, reason string) string {
	const field, longer = "name:", "cluster_"
	for from := 0; ; {
		i := strings.Index(reason[from:], field)
		if i < 0 {
			return ""
		}
		i += from
		from = i + len(field)
		before := strings.TrimSuffix(reason[:i], longer)
		if before != "" && !strings.ContainsRune(" {\n", rune(before[len(before)-1])) {
			continue
		}
		value, quoted := strings.CutPrefix(strings.TrimLeft(reason[from:], " "), `"`)
		name, _, ok := strings.Cut(value[:min(len(value), maxNameLength+1)], `"`)
		if quoted && ok && sent[name] {
			return name
		}
	}
}

// shorten keeps only the beginning and the end of a long text: Envoy may print a whole resource before the reason.
func shorten(reason string) string { return cut(reason, maxReason) }

// cut returns a copy of a text, shortened to about most bytes. Invalid UTF-8 is replaced.
func cut(text string, most int) string {
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most/2], "") + " … " + strings.ToValidUTF8(text[len(text)-most/2:], "")
	}
	return strings.Clone(strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) || r == utf8.RuneError {
			return '?'
		}
		return r
	}, text))
}
