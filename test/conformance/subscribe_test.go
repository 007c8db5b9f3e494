package conformance

import (
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// TestWildcard has clients that subscribe to all clusters or listeners, without a name as older clients do, or by the
// wildcard's name.
func TestWildcard(t *testing.T) {
	for spelling, all := range map[string]step{"no name": subscribe(), "star": subscribe("*")} {
		t.Run(spelling, func(t *testing.T) {
			play(t, map[string]scenario{
				"all resources in one response": {types: listed, steps: []step{
					have("A@1 B@1 C@1"),
					all, accept(says{delta: "A@1 B@1 C@1"}),
				}},
				"an updated resource": {types: listed, steps: []step{
					have("A@1 B@1 C@1"),
					all, accept(says{delta: "A@1 B@1 C@1"}),
					have("A@2 B@1 C@1"), accept(says{delta: "A@2", listed: "A@2 B@1 C@1"}),
				}},
				"a new resource": {types: listed, steps: []step{
					have("A@1 B@1 C@1"),
					all, accept(says{delta: "A@1 B@1 C@1"}),
					have("A@1 B@1 C@1 D@2"), accept(says{delta: "D@2", listed: "A@1 B@1 C@1 D@2"}),
				}},
				"a removed resource": {types: listed, steps: []step{
					have("A@1 B@1 C@1"),
					all, accept(says{delta: "A@1 B@1 C@1"}),
					have("A@1 C@1"), accept(says{delta: "-B", listed: "A@1 C@1"}),
				}},
				"all resources are removed": {types: listed, steps: []step{
					have("A@1 B@1"),
					all, accept(says{delta: "A@1 B@1"}),
					have(""), accept(says{delta: "-A -B", listed: empty}),
				}},
				"no resource yet": {types: listed, steps: []step{
					all, accept(says{delta: empty}),
					have("A@1"), accept(says{delta: "A@1"}),
				}},
			})
		})
	}
	play(t, map[string]scenario{
		"of routes and endpoints, by name": {types: single, protocols: delta, steps: []step{
			have("A@1 B@1"),
			subscribe("*"), accept(says{delta: "A@1 B@1"}),
			have("A@1 B@2 C@1"), accept(says{delta: "B@2 C@1"}),
			have("B@2 C@1"), accept(says{delta: "-A"}),
		}},
		"routes and endpoints need a name": {types: single, steps: []step{
			have("A@1"),
			subscribe(),
			have("A@2"),
		}},
		"again, and all is sent again": {types: listed, protocols: delta, steps: []step{
			have("A@1 B@1"),
			subscribe("*"), accept(says{delta: "A@1 B@1"}),
			subscribe("A"), accept(says{delta: "A@1"}),
			subscribe("*"), accept(says{delta: "A@1 B@1"}),
		}},
		"without it only the names remain": {protocols: delta, steps: []step{
			have("A@1 B@1"),
			subscribe("*", "A"), accept(says{delta: "A@1 B@1"}),
			unsubscribe("*"),
			have("A@2 B@2 C@1"), accept(says{delta: "A@2"}),
		}},
		"a name that it includes is unsubscribed, and answered": {protocols: delta, steps: []step{
			have("A@1"),
			subscribe("*", "A", "Z"), accept(says{delta: "A@1 -Z"}),
			unsubscribe("A", "Z"), accept(says{delta: "A@1 -Z"}),
			have("A@2 Z@1"), accept(says{delta: "A@2 Z@1"}),
		}},
	})
}

// TestSubscribe has clients that subscribe to resources by name.
func TestSubscribe(t *testing.T) {
	play(t, map[string]scenario{
		"only what is subscribed": {steps: []step{
			have("A@1 B@1 C@1 D@1"),
			subscribe("B", "D"), accept(says{delta: "B@1 D@1"}),
		}},
		"one after the other": {steps: []step{
			have("A@1 B@1 C@1"),
			subscribe("A"), accept(says{delta: "A@1"}),
			subscribe("B"), accept(says{delta: "B@1", listed: "A@1 B@1"}),
		}},
		"an update of what is subscribed": {steps: []step{
			have("A@1 B@1 C@1 D@1"),
			subscribe("B", "D"), accept(says{delta: "B@1 D@1"}),
			have("A@1 B@2 C@1 D@1"), accept(says{delta: "B@2", listed: "B@2 D@1"}),
		}},
		"nothing of what is not subscribed": {steps: []step{
			have("A@1 B@1 C@1"),
			subscribe("B"), accept(says{delta: "B@1"}),
			have("A@2 B@1 D@1"),
		}},
		"what does not exist, and is created": {steps: []step{
			have("A@1 B@1"),
			subscribe("A", "Z"), accept(says{delta: "A@1 -Z", single: "A@1", listed: "A@1", endpoints: "A@1 Z@"}),
			have("A@1 B@1 Z@2"), accept(says{delta: "Z@2", listed: "A@1 Z@2"}),
		}},
		"what does not exist, alone, and is created": {steps: []step{
			subscribe("Z"), accept(says{delta: "-Z", single: empty, listed: empty, endpoints: "Z@"}),
			have("Z@1"), accept(says{delta: "Z@1"}),
		}},
		"removed, and created again": {steps: []step{
			have("A@1 B@1"),
			subscribe("A", "B"), accept(says{delta: "A@1 B@1"}),
			have("A@1"), accept(says{delta: "-B", listed: "A@1", single: nothing}),
			have("A@1 B@2"), accept(says{delta: "B@2", listed: "A@1 B@2"}),
		}},
		"a name again, and it is answered again": {protocols: delta, steps: []step{
			have("A@1 B@1"),
			subscribe("A", "Z"), accept(says{delta: "A@1 -Z"}),
			subscribe("A", "Z"), accept(says{delta: "A@1 -Z"}),
		}},
		"the same names again": {protocols: sotw, steps: []step{
			have("A@1 B@1"),
			subscribe("A"), accept(says{delta: "A@1"}),
			subscribe("A"),
		}},
		"changes while a response is unanswered": {types: single, steps: []step{
			have("A@1 B@1"),
			subscribe("A", "B"), receive(says{delta: "A@1 B@1"}),
			have("A@2 B@1"), accept(says{delta: "A@2"}),
		}},
		"an unanswered list is the last one": {types: listed, protocols: sotw, steps: []step{
			have("A@1 B@1"),
			subscribe("A", "B"), receive(says{delta: "A@1 B@1"}),
			have("A@2 B@1"), receive(says{delta: nothing}),
			ack(), accept(says{delta: "A@2 B@1"}),
		}},
	})
}

// TestUnsubscribe has clients that no longer want some or all resources.
func TestUnsubscribe(t *testing.T) {
	play(t, map[string]scenario{
		"from some": {steps: []step{
			have("A@1 B@1 C@1 D@1"),
			subscribe("A", "B", "C"), accept(says{delta: "A@1 B@1 C@1"}),
			unsubscribe("B", "C"),
			have("A@1 B@2 C@1 D@1"),
			have("A@2 B@2 C@1 D@1"), accept(says{delta: "A@2"}),
		}},
		"one after the other": {steps: []step{
			have("A@1 B@1"),
			subscribe("A", "B"), accept(says{delta: "A@1 B@1"}),
			unsubscribe("B"),
			have("A@1 B@2"),
			unsubscribe("A"),
			have("A@2 B@2"),
		}},
		"from all": {steps: []step{
			have("A@1 B@1 C@1"),
			subscribe("A", "B"), accept(says{delta: "A@1 B@1"}),
			unsubscribe("A", "B"),
			have("A@1 B@2"),
			have("C@2"),
		}},
		"and subscribe again": {steps: []step{
			have("A@1 B@1"),
			subscribe("A", "B"), accept(says{delta: "A@1 B@1"}),
			unsubscribe("B"),
			have("A@1 B@2"),
			subscribe("B"), accept(says{delta: "B@2", listed: "A@1 B@2"}),
		}},
		"from all, and subscribe again": {steps: []step{
			have("A@1"),
			subscribe("A"), accept(says{delta: "A@1"}),
			unsubscribe("A"),
			subscribe("A"), accept(says{delta: "A@1"}),
		}},
		"from what was never subscribed": {protocols: delta, steps: []step{
			have("A@1 B@1"),
			subscribe("A"), accept(says{delta: "A@1"}),
			unsubscribe("B", "Z"),
			have("A@2 B@2"), accept(says{delta: "A@2"}),
		}},
		"from what does not exist": {steps: []step{
			have("A@1"),
			subscribe("A", "Z"), accept(says{delta: "A@1 -Z", single: "A@1", listed: "A@1", endpoints: "A@1 Z@"}),
			unsubscribe("Z"),
			have("A@1 Z@1"),
		}},
	})
}

// TestTwoTypes has clients that subscribe to two types on one stream.
func TestTwoTypes(t *testing.T) {
	for _, pair := range [][2]resource.Type{
		{resource.Cluster, resource.Listener}, {resource.Listener, resource.Cluster},
		{resource.Route, resource.Endpoint}, {resource.Endpoint, resource.Route},
	} {
		first, second := pair[0], pair[1]
		for _, p := range envoysim.Protocols() {
			t.Run(string(p)+" "+first.Short()+" "+second.Short(), func(t *testing.T) {
				t.Parallel()
				playOne(t, p, first,
					have("A@1 B@1 C@1"), of(second, have("A@1 B@1 C@1")),
					subscribe("B"), accept(says{delta: "B@1"}),
					of(second, subscribe("B")), of(second, accept(says{delta: "B@1"})),
					have("A@1 B@2 C@1"), accept(says{delta: "B@2"}),
					of(second, have("A@1 B@2 C@1")), of(second, accept(says{delta: "B@2"})),
				)
			})
			t.Run(string(p)+" "+first.Short()+" "+second.Short()+", both at once", func(t *testing.T) {
				t.Parallel()
				playOne(t, p, first,
					have("A@1 B@1 C@1"), of(second, have("A@1 B@1 C@1")),
					subscribe("B"), of(second, subscribe("B")),
					accept(says{delta: "B@1"}), of(second, accept(says{delta: "B@1"})),
				)
			})
		}
	}
}
