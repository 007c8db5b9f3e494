package conformance

import (
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
)

// TestAnswer has clients that ACK, NACK, or send something else.
func TestAnswer(t *testing.T) {
	play(t, map[string]scenario{
		"an ACK twice": {steps: []step{
			have("A@1"),
			subscribe("A"), accept(says{delta: "A@1"}),
			ack(), ack(),
			have("A@2"), accept(says{delta: "A@2"}),
		}},
		"an ACK of a nonce that was never sent": {protocols: delta, steps: []step{
			have("A@1"),
			subscribe("A"), accept(says{delta: "A@1"}),
			send(func(*run) *envoysim.Request { return &envoysim.Request{Nonce: "never"} }),
			have("A@2"), accept(says{delta: "A@2"}),
		}},
		"a NACK of what is answered refuses nothing": {steps: []step{
			have("A@1"),
			subscribe("A"), accept(says{delta: "A@1"}),
			have("A@2"), accept(says{delta: "A@2"}),
			send(nackOf(0)), send(nackOf(1)),
			have("A@3"), accept(says{delta: "A@3"}),
		}},
		"a refused version is not sent again, the next one is": {types: single, steps: []step{
			have("A@1 B@1"),
			subscribe("A", "B"), accept(says{delta: "A@1 B@1"}),
			have("A@2 B@1"), refuse(says{delta: "A@2"}, "no"),
			have("A@2 B@2"), accept(says{delta: "B@2"}),
			have("A@3 B@2"), accept(says{delta: "A@3"}),
		}},
		"a list has the last good version of what is refused": {types: listed, protocols: sotw, steps: []step{
			have("A@1 B@1"),
			subscribe(), accept(says{delta: "A@1 B@1"}),
			have("A@2 B@1"), refuse(says{delta: "A@2 B@1"}, "no"),
			have("A@2 B@2"), accept(says{delta: "A@1 B@2"}),
			have("A@3 B@2"), accept(says{delta: "A@3 B@2"}),
		}},
		"a refused version of clusters and listeners": {types: listed, protocols: delta, steps: []step{
			have("A@1 B@1"),
			subscribe(), accept(says{delta: "A@1 B@1"}),
			have("A@2 B@1"), refuse(says{delta: "A@2"}, "no"),
			have("A@2 B@2"), accept(says{delta: "B@2"}),
			have("A@3 B@2"), accept(says{delta: "A@3"}),
		}},
		"a refused version goes back to the last good one": {steps: []step{
			have("A@1"),
			subscribe("A"), accept(says{delta: "A@1"}),
			have("A@2"), refuse(says{delta: "A@2"}, "no"),
			have("A@1"), accept(says{delta: "A@1"}),
		}},
	})
}

// TestReconnect has clients that open a new stream.
func TestReconnect(t *testing.T) {
	play(t, map[string]scenario{
		"without versions all is sent again": {steps: []step{
			have("A@1 B@1"),
			subscribe("A"), accept(says{delta: "A@1"}),
			reconnect("", "A"), accept(says{delta: "A@1"}),
		}},
		"what has not changed is not sent": {protocols: delta, steps: []step{
			have("A@1 B@1"),
			subscribe("A", "B"), accept(says{delta: "A@1 B@1"}),
			reconnect("A@1 B@1", "A", "B"),
			have("A@2 B@1"), accept(says{delta: "A@2"}),
		}},
		"what has changed is sent": {protocols: delta, steps: []step{
			have("A@1 B@1"),
			subscribe("A", "B"), accept(says{delta: "A@1 B@1"}),
			have("A@2 B@1"), receive(says{delta: "A@2"}),
			reconnect("A@1 B@1", "A", "B"), accept(says{delta: "A@2"}),
		}},
		"what the client lacks is sent": {protocols: delta, steps: []step{
			have("A@1 B@1"),
			reconnect("A@1", "A", "B", "Z"), accept(says{delta: "B@1 -Z"}),
		}},
		"a wildcard with versions": {types: listed, protocols: delta, steps: []step{
			have("A@1 B@2 C@1"),
			reconnect("A@1 B@1"), accept(says{delta: "B@2 C@1"}),
			have("A@2 B@2 C@1"), accept(says{delta: "A@2"}),
		}},
	})
}
