package conformance

import (
	"slices"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// unserved is a type that Sonde does not serve.
const unserved = resource.Type("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret")

// TestNonce has state-of-the-world clients whose requests have another nonce than the last response.
func TestNonce(t *testing.T) {
	play(t, map[string]scenario{
		"a stale nonce: the names are taken": {types: single, protocols: sotw, steps: []step{
			have("A@1 B@1"),
			subscribe("A"), accept(says{delta: "A@1"}),
			have("A@2 B@1"), receive(says{delta: "A@2"}),
			send(withNonceOf(0, "A", "B")), accept(says{delta: "B@1"}),
			have("A@2 B@2"), accept(says{delta: "B@2"}),
		}},
		"a stale nonce: names that it lacks are unsubscribed": {types: single, protocols: sotw, steps: []step{
			have("A@1 B@1"),
			subscribe("A", "B"), accept(says{delta: "A@1 B@1"}),
			have("A@2 B@1"), receive(says{delta: "A@2"}),
			send(withNonceOf(0, "A")),
			send(withNonceOf(1, "A")),
			have("A@2 B@2"),
		}},
		// The second response's list is unanswered, and the next response waits for its ACK.
		"a stale nonce: the names of a list are taken": {types: listed, protocols: sotw, steps: []step{
			have("A@1 B@1"),
			subscribe("A"), accept(says{delta: "A@1"}),
			have("A@2 B@1"), receive(says{delta: "A@2"}),
			send(withNonceOf(0, "A", "B")),
			send(withNonceOf(1, "A", "B")), accept(says{delta: "A@2 B@1"}),
		}},
		"the nonce of the stream before": {protocols: sotw, steps: []step{
			have("A@1"),
			send(withNonce("77", "A")), accept(says{delta: "A@1"}),
			have("A@2"), accept(says{delta: "A@2"}),
		}},
		"the nonce of the stream before, for the wildcard": {types: listed, protocols: sotw, steps: []step{
			have("A@1"),
			send(withNonce("77")), accept(says{delta: "A@1"}),
			have("A@2"), accept(says{delta: "A@2"}),
		}},
		"no nonce in a later request": {protocols: sotw, steps: []step{
			have("A@1 B@1"),
			subscribe("A"), accept(says{delta: "A@1"}),
			send(withNonce("", "A", "B")), accept(says{delta: "A@1 B@1"}),
			have("A@1 B@2"), accept(says{delta: "B@2", listed: "A@1 B@2"}),
		}},
		"no nonce in a later request that names nothing new": {protocols: sotw, steps: []step{
			have("A@1 B@1"),
			subscribe("A", "B"), accept(says{delta: "A@1 B@1"}),
			send(withNonce("", "A")), accept(says{delta: "A@1"}),
			have("A@1 B@2"),
			have("A@2 B@2"), accept(says{delta: "A@2"}),
		}},
	})
}

// withNonce is a request for these names with this nonce instead of the nonce of the last response.
func withNonce(nonce string, names ...string) func(r *run) *envoysim.Request {
	return func(r *run) *envoysim.Request {
		for name := range r.client.names[r.kind] {
			delete(r.client.names[r.kind], name)
		}
		return &envoysim.Request{Names: r.client.subscribe(r.kind, names, nil), Nonce: nonce}
	}
}

// withNonceOf is withNonce with the nonce of the response with this index.
func withNonceOf(i int, names ...string) func(r *run) *envoysim.Request {
	return func(r *run) *envoysim.Request { return withNonce(r.client.nonces[i], names...)(r) }
}

// TestOddRequest has unusual requests that are answered as well as possible, and do not end the stream.
func TestOddRequest(t *testing.T) {
	play(t, map[string]scenario{
		"a name subscribed and unsubscribed at once": {protocols: delta, steps: []step{
			have("A@1 B@1"),
			change([]string{"A", "B"}, []string{"A"}), accept(says{delta: "B@1"}),
			have("A@2 B@2"), accept(says{delta: "B@2"}),
		}},
		"a name that is subscribed already, subscribed and unsubscribed at once": {protocols: delta, steps: []step{
			have("A@1 B@1"),
			subscribe("A", "B"), accept(says{delta: "A@1 B@1"}),
			change([]string{"A"}, []string{"A"}),
			have("A@2 B@2"), accept(says{delta: "B@2"}),
		}},
		"an empty name, in delta": {protocols: delta, steps: []step{
			have("A@1"),
			subscribe("", "A"), accept(says{delta: "A@1 -"}),
			have("A@2"), accept(says{delta: "A@2"}),
		}},
		"an empty name, and no other, in delta": {protocols: delta, steps: []step{
			have("A@1"),
			subscribe(""), accept(says{delta: "-"}),
			have("A@2"),
		}},
		"an empty name among others, in the state of the world": {protocols: sotw, steps: []step{
			have("A@1"),
			subscribe("", "A"), accept(says{delta: "A@1"}),
			have("A@2"), accept(says{delta: "A@2"}),
		}},
		// The public suite unsubscribes from everything this way.
		"an empty name instead of others, in the state of the world": {protocols: sotw, steps: []step{
			have("A@1 B@1 C@1"),
			subscribe("A", "B"), accept(says{delta: "A@1 B@1"}),
			change([]string{""}, []string{"A", "B"}), withoutResources(),
			have("A@1 B@2 C@1"), withoutResources(),
		}},
		"an empty name and no other, in the state of the world": {protocols: sotw, steps: []step{
			have("A@1"),
			subscribe(""), withoutResources(),
			have("A@2"), withoutResources(),
			change([]string{"A"}, []string{""}), accept(says{delta: "A@2"}),
		}},
		"a type that is not served, in delta": {protocols: delta, steps: []step{
			have("A@1"),
			subscribe("A"), accept(says{delta: "A@1"}),
			of(unserved, subscribe("x", "y")), of(unserved, accept(says{delta: "-x -y"})),
			have("A@2"), accept(says{delta: "A@2"}),
		}},
		"a type that is not served, in the first request of the stream": {protocols: delta, steps: []step{
			have("A@1"),
			of(unserved, subscribe("x")), of(unserved, accept(says{delta: "-x"})),
			subscribe("A"), accept(says{delta: "A@1"}),
		}},
		"a type that is not served, in the state of the world": {protocols: sotw, steps: []step{
			have("A@1"),
			subscribe("A"), accept(says{delta: "A@1"}),
			of(unserved, subscribe("x", "y")), of(unserved, accept(says{delta: empty})),
			have("A@2"), accept(says{delta: "A@2"}),
		}},
		"a type that is not served, without names": {steps: []step{
			have("A@1"),
			of(unserved, subscribe()), of(unserved, accept(says{delta: empty})),
			subscribe("A"), accept(says{delta: "A@1"}),
		}},
	})
}

// withoutResources receives the next response, if any, and ACKs it. It must not have a resource.
func withoutResources() step {
	return func(r *run) {
		r.t.Helper()
		r.settle()
		m := r.client.next(r.kind)
		if m == nil {
			return
		}
		if len(m.Put) > 0 {
			r.t.Fatalf("step %d: unexpected response: %q", r.step+1, r.describe(m))
		}
		r.answer("")
	}
}

// TestRefusedIsAskedFor has clients that request what they refused before.
func TestRefusedIsAskedFor(t *testing.T) {
	play(t, map[string]scenario{
		"the last good version is sent": {protocols: delta, steps: []step{
			have("A@1"),
			subscribe("A"), accept(says{delta: "A@1"}),
			have("A@2"), refuse(says{delta: "A@2"}, "no"),
			subscribe("A"), accept(says{delta: "A@1"}),
		}},
		"the last good version is sent, after others were unsubscribed": {protocols: delta, steps: []step{
			have("A@1 B@1"),
			subscribe("A", "B"), accept(says{delta: "A@1 B@1"}),
			have("A@2 B@1"), refuse(says{delta: "A@2"}, "no"),
			change([]string{"A"}, []string{"B"}), accept(says{delta: "A@1"}),
		}},
		// The client has dropped the resource, so it gets the last good version or, if the server no longer has that, the
		// refused one.
		"it is not said to be gone, after it was unsubscribed": {steps: []step{
			have("A@1"),
			subscribe("A"), accept(says{delta: "A@1"}),
			have("A@2"), refuse(says{delta: "A@2"}, "no"),
			unsubscribe("A"),
			subscribe("A"), oneOf("A@1", "A@2"),
		}},
		// The server has never had the last good version, but the client still has it.
		"it is not said to be gone, on a new stream": {protocols: delta, steps: []step{
			have("A@2"),
			reconnect("A@1", "A"), refuse(says{delta: "A@2"}, "no"),
			subscribe("A"), oneOf("A@2", nothing),
		}},
		// The client refuses the response because of B, but does not say so. A is sent again alone, and accepted.
		"a version that was accepted later is sent": {protocols: delta, steps: []step{
			have("A@1 B@1"),
			subscribe("A", "B"), refuse(says{delta: "A@1 B@1"}, "no"),
			accept(says{delta: "A@1"}),
			refuse(says{delta: "B@1"}, "no"),
			subscribe("A"), accept(says{delta: "A@1"}),
		}},
		// Two responses with the same version are unanswered. The client refuses the first and accepts the second.
		"a refused version that is accepted in another response": {protocols: delta, steps: []step{
			have("A@1"),
			subscribe("A"), receive(says{delta: "A@1"}),
			subscribe("A"), receive(says{delta: "A@1"}),
			send(nackOf(0)), send(ackOf(1)),
			subscribe("A"), accept(says{delta: "A@1"}),
			have("A@2"), accept(says{delta: "A@2"}),
		}},
	})
}

// oneOf receives the next response, which must be one of these.
func oneOf(allowed ...string) step {
	return func(r *run) {
		r.t.Helper()
		r.settle()
		if got := r.describe(r.client.next(r.kind)); !slices.Contains(allowed, got) {
			r.t.Fatalf("step %d: response %q, want one of %q", r.step+1, got, allowed)
		}
	}
}

// nackOf and ackOf answer the response with this index.
func nackOf(i int) func(r *run) *envoysim.Request {
	return func(r *run) *envoysim.Request {
		return &envoysim.Request{Names: r.client.subscribe(r.kind, nil, nil), Nonce: r.client.nonces[i], Refusal: "no"}
	}
}

func ackOf(i int) func(r *run) *envoysim.Request {
	return func(r *run) *envoysim.Request { return &envoysim.Request{Nonce: r.client.nonces[i]} }
}
