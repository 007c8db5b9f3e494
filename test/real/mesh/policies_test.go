package mesh

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// policyServices are two services of the same HTTP applications: Envoy forwards web as HTTP and raw as
// TCP.
var policyServices = []string{"web", "raw"}

// instances starts applications without sidecars, and returns their addresses by name.
func instances(t *testing.T, m *harness.Machine, names ...string) map[string]string {
	t.Helper()
	at := map[string]string{}
	for _, name := range names {
		at[name] = must.FreeAddress(t, m)
		_, err := m.StartApp(t.Context(), name, "http", at[name])
		must.Do(t, err)
	}
	return at
}

// putServices writes both services with additional fields and endpoints, in YAML.
func putServices(t *testing.T, m *harness.Machine, fields string, endpoints ...string) {
	t.Helper()
	for service, protocol := range map[string]string{"web": "http", "raw": "tcp"} {
		must.Do(t, m.Put(service+".yaml", fmt.Sprintf("type: Service\nmesh: default\nname: %s\nprotocol: %s\n%s\nendpoints: [%s]\n",
			service, protocol, fields, strings.Join(endpoints, ", "))))
	}
}

// callOnce makes a call on its own connection.
func callOnce(ctx context.Context, at string) (string, error) {
	c := harness.NewHTTPCaller("http://"+at+"/", false, false)
	defer c.Close()
	return c.Call(ctx)
}

// keptBy waits until a caller reaches only one instance, and returns the instance's name.
func keptBy(t *testing.T, at string) string {
	t.Helper()
	var kept string
	must.Poll(t, "one instance to answer", func(ctx context.Context) error {
		for i := range 30 {
			instance, err := callOnce(ctx, at)
			switch {
			case err != nil:
				return err
			case i > 0 && instance != kept:
				return fmt.Errorf("%s answers, and %s did", instance, kept)
			}
			kept = instance
		}
		return nil
	})
	return kept
}

// TestSessionAffinity has four callers of a service with six endpoints.
func TestSessionAffinity(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	names := []string{"b-1", "b-2", "b-3", "b-4", "b-5", "b-6"}
	at := instances(t, m, names...)
	put := func(affinity, without string) {
		t.Helper()
		var endpoints []string
		for _, name := range names {
			endpoints = append(endpoints, fmt.Sprintf("{address: 127.0.0.1, port: %d, health: {ready: %t}}", must.Port(t, at[name]), name != without))
		}
		putServices(t, m, "sessionAffinity: "+affinity, endpoints...)
	}
	put("None", "")
	var options []harness.ProxyOptions
	for i := range 4 {
		options = append(options, harness.ProxyOptions{Name: fmt.Sprintf("a-%d", i+1), Service: "a", Outbound: policyServices})
	}
	callers := must.Add(t, m, options...)
	for _, service := range policyServices {
		answersOf(t, callers[0].Outbounds[service], names...)
	}

	spread := map[string]bool{}
	for _, service := range policyServices {
		kept := func(without string) []string {
			t.Helper()
			var have []string
			for _, name := range names {
				if name != without {
					have = append(have, at[name])
				}
			}
			var all []string
			for _, c := range callers {
				must.HaveEndpoints(t, c, service, have...)
				all = append(all, keptBy(t, c.Outbounds[service]))
			}
			return all
		}
		put("ClientIP", "")
		before := kept("")
		left := before[0]
		put("ClientIP", left)
		moved := 0
		for i, now := range kept(left) {
			if now == left {
				t.Errorf("%s of %s keeps to %s, which is not ready", callers[i].Name, service, left)
			}
			if before[i] != left && now != before[i] {
				moved++
			}
			spread[before[i]], spread[now] = true, true
		}
		if moved > 1 { // few callers of other endpoints move: some in a thousand
			t.Errorf("callers of %s kept to %v, and %d of other endpoints than %s have moved", service, before, moved, left)
		}
	}
	if len(spread) < 2 {
		t.Errorf("all callers keep to %v", spread)
	}

	put("None", "")
	for _, service := range policyServices {
		answersOf(t, callers[0].Outbounds[service], names...)
	}
}

// closes waits until Envoy closes new connections without a response.
func closes(t *testing.T, at string) {
	t.Helper()
	must.Poll(t, "connections to be closed", func(context.Context) error {
		for range 10 {
			conn := must.Connect(t, at)
			_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: web\r\n\r\n") // the connection may be closed already
			if err := closedWithout(conn); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestInternalTrafficPolicyLocal has callers on two nodes, and a caller whose node is unknown.
func TestInternalTrafficPolicyLocal(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	at := instances(t, m, "here", "near", "there")
	endpoint := func(name, node, health string) string {
		return fmt.Sprintf("{address: 127.0.0.1, port: %d, nodeName: %q, health: {%s}}", must.Port(t, at[name]), node, health)
	}
	const cluster, local = "internalTrafficPolicy: Cluster", "internalTrafficPolicy: Local"
	here, near, there := endpoint("here", "node-1", ""), endpoint("near", "node-1", ""), endpoint("there", "node-2", "")
	putServices(t, m, cluster, here, near, there)
	caller := func(name, node string) harness.ProxyOptions {
		// Envoy closes draining connections after a second.
		o := harness.ProxyOptions{Name: name, Service: "a", Outbound: policyServices, AgentArgs: []string{"--drain-time=1s"}}
		if node != "" {
			o.Labels = map[string]string{"sonde.dev/node": node}
		}
		return o
	}
	callers := must.Add(t, m, caller("a-1", "node-1"), caller("a-2", "node-2"), caller("a-3", ""))
	// reached waits until exactly these instances respond to each caller; an empty list means that
	// connections are closed.
	reached := func(want ...[]string) {
		t.Helper()
		for i, c := range callers {
			for _, service := range policyServices {
				if len(want[i]) > 0 {
					answersOf(t, c.Outbounds[service], want[i]...)
				} else {
					closes(t, c.Outbounds[service])
				}
			}
		}
	}
	all := []string{"here", "near", "there"}
	reached(all, all, all)

	putServices(t, m, local, here, near, there)
	reached([]string{"here", "near"}, []string{"there"}, nil)
	shown, err := m.Ctl(t.Context(), "get", "services", "web", "-o", "yaml")
	must.Do(t, err)
	for _, want := range []string{"internalTrafficPolicy: Local", "nodeName: node-2"} {
		if !strings.Contains(shown, want) {
			t.Errorf("sondectl get services shows no %q:\n%s", want, shown)
		}
	}

	// Terminating endpoints that serve are used if no other endpoint of the node is ready.
	putServices(t, m, local, here, endpoint("near", "node-1", "ready: false, serving: true"), endpoint("there", "node-2", "ready: false, serving: true"))
	reached([]string{"here"}, []string{"there"}, nil)
	putServices(t, m, local, endpoint("here", "node-1", "ready: false"), endpoint("near", "node-1", "ready: false, serving: true"))
	reached([]string{"near"}, nil, nil)

	// An endpoint becomes ready, and not ready.
	putServices(t, m, local, here, endpoint("there", "", ""))
	reached([]string{"here"}, nil, nil)
	putServices(t, m, local, there)
	reached(nil, []string{"there"}, nil)

	putServices(t, m, cluster, here, near, there)
	reached(all, all, all)

	t.Run("open requests continue", func(t *testing.T) {
		web := callers[0].Outbounds["web"]
		putServices(t, m, local, here)
		answersOf(t, web, "here")
		answered := make(chan error, 1)
		go func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			_, err := harness.Get(t.Context(), client, "http://"+web+"/slow?for=6s")
			answered <- err
		}()
		must.Poll(t, "the request to be open", func(ctx context.Context) error {
			stats, err := callers[0].Stats(ctx, "cluster.web.upstream_rq_active")
			if err == nil && stats["cluster.web.upstream_rq_active"] != 1 {
				err = fmt.Errorf("%v", stats)
			}
			return err
		})
		putServices(t, m, local, there)
		closes(t, web)
		putServices(t, m, local, here)
		answersOf(t, web, "here")
		if err := <-answered; err != nil {
			t.Errorf("a request that was open when the node lost its endpoint: %v", err)
		}
	})
}

// TestNodeOfADataplane has an endpoint with a sidecar whose Dataplane names its node, and a caller that moves
// to another node.
func TestNodeOfADataplane(t *testing.T) {
	t.Parallel()
	m := newMesh(t, strict)
	must.Do(t, m.Put("b.yaml", "type: Service\nmesh: default\nname: b\nprotocol: http\ninternalTrafficPolicy: Local\n"))
	onNode := func(name, service, node string, outbound ...string) harness.ProxyOptions {
		return harness.ProxyOptions{Name: name, Service: service, Outbound: outbound, Labels: map[string]string{"sonde.dev/node": node}}
	}
	proxies := must.Add(t, m, onNode("a-1", "a", "node-1", "b"), onNode("b-1", "b", "node-1"), onNode("b-2", "b", "node-2"))
	a := proxies[0]
	answersOf(t, a.Outbounds["b"], "b-1")
	a.Labels["sonde.dev/node"] = "node-2"
	must.Do(t, a.Declare())
	answersOf(t, a.Outbounds["b"], "b-2")
	a.Labels["sonde.dev/node"] = "node-3"
	must.Do(t, a.Declare())
	closes(t, a.Outbounds["b"])
}
