package conformance

import (
	"cmp"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// step is one step of a script. A step that performs an action first checks that earlier steps have received every
// response so far.
type step func(r *run)

// says is a response: "A@1 B@2 -C" for two resources and a name in removed_resources. State-of-the-world responses may
// differ; by default each field has the value of the field before it.
type says struct {
	delta string
	// single is for state-of-the-world responses that have only what the client lacks: endpoints and routes.
	single string
	// listed is for state-of-the-world responses that have the whole list: clusters and listeners. Default: delta.
	listed string
	// endpoints replaces single for endpoints, if they differ.
	endpoints string
}

const (
	empty   = "(a response without resources)"
	nothing = "(no response)"
)

func (s says) to(r *run) string {
	switch {
	case r.protocol == envoysim.Delta:
		return s.delta
	case slices.Contains(listed, r.kind):
		return cmp.Or(s.listed, s.delta)
	case r.kind == resource.Endpoint:
		return cmp.Or(s.endpoints, s.single, s.delta)
	}
	return cmp.Or(s.single, s.delta)
}

// have makes these resources all resources of the type that the client should have.
func have(text string) step {
	return func(r *run) {
		r.t.Helper()
		r.quiet()
		r.server.publish(r.kind, text)
	}
}

// subscribe adds names to the subscription. The first request of a type without names subscribes to the wildcard.
func subscribe(names ...string) step {
	return func(r *run) {
		r.t.Helper()
		r.quiet()
		r.request(names, nil, "")
	}
}

// unsubscribe removes names from the subscription.
func unsubscribe(names ...string) step {
	return func(r *run) {
		r.t.Helper()
		r.quiet()
		r.request(nil, names, "")
	}
}

// change adds and removes names in one request.
func change(add, remove []string) step {
	return func(r *run) {
		r.t.Helper()
		r.quiet()
		r.request(add, remove, "")
	}
}

// send sends a request unchanged, with the type of the script.
func send(request func(r *run) *envoysim.Request) step {
	return func(r *run) {
		r.t.Helper()
		r.quiet()
		q := request(r)
		q.Type = cmp.Or(q.Type, r.kind)
		r.client.send(q)
	}
}

// receive takes the next response, which must be this one. The client does not answer it.
func receive(want says) step {
	return func(r *run) {
		r.t.Helper()
		r.settle()
		m, text := r.client.next(r.kind), want.to(r)
		got := r.describe(m)
		if got != text {
			_, err := r.client.unread(r.kind)
			r.t.Fatalf("step %d: response %q, want %q (stream error: %v)", r.step+1, got, text, err)
		}
		if m != nil {
			r.checkVersion(m, got)
		}
	}
}

// accept is receive, followed by an ACK. Nothing is ACKed if no response is expected.
func accept(want says) step {
	return func(r *run) {
		r.t.Helper()
		receive(want)(r)
		if want.to(r) != nothing {
			r.answer("")
		}
	}
}

// ack ACKs the last response, which may have been answered already.
func ack() step {
	return func(r *run) {
		r.t.Helper()
		r.quiet()
		r.answer("")
	}
}

// refuse is receive, followed by a NACK with a reason.
func refuse(want says, reason string) step {
	return func(r *run) {
		r.t.Helper()
		receive(want)(r)
		if want.to(r) != nothing {
			r.answer(reason)
		}
	}
}

// reconnect opens a new stream. The client subscribes to names. In delta it also says that it has the versions in text.
func reconnect(text string, names ...string) step {
	return func(r *run) {
		r.t.Helper()
		r.quiet()
		if r.client.wire != nil {
			r.client.close()
		}
		r.client = r.server.client(r.protocol)
		q := &envoysim.Request{Type: r.kind, Add: names, Names: r.client.subscribe(r.kind, names, nil), Versions: map[string]string{}}
		for label := range strings.FieldsSeq(text) {
			one := r.server.resources(r.kind, label)[0]
			q.Versions[one.Name] = one.Version
		}
		r.client.send(q)
	}
}

// of performs a step for another type.
func of(other resource.Type, s step) step {
	return func(r *run) {
		r.t.Helper()
		kind := r.kind
		r.kind = other
		s(r)
		r.kind = kind
	}
}
