package lb_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// updater follows kube-proxy's own table for both endpoints (pkg/proxy/healthcheck/healthcheck_test.go,
// testProxyHealthUpdater), with its limit of 10 s and its steps. Changes of Envoy are seen at the next check, not at
// once.
func updater(s *server, expect func(when string, code int)) {
	const v4, v6 = "10.0.0.1", "fd00::1"
	queued := func(addresses ...string) {
		for _, a := range addresses {
			s.envoy.receive(a)
		}
	}
	updated := func(addresses ...string) {
		for _, a := range addresses {
			s.envoy.apply(a)
		}
		s.wait(look)
	}
	expect("by default", http.StatusOK)
	updated(v4, v6)
	expect("after the first update of both", http.StatusOK)
	s.wait(25 * time.Second)
	expect("nothing is queued", http.StatusOK)
	for _, late := range [][]string{{v4}, {v6}, {v4, v6}} {
		when := strings.Join(late, " ")
		queued(late...)
		s.wait(25 * time.Second)
		expect("late are: "+when, http.StatusServiceUnavailable)
		updated(v4, v6)
		expect("updated are: "+when, http.StatusOK)
	}
	queued(v6)
	s.wait(25 * time.Second)
	expect("IPv6 is late", http.StatusServiceUnavailable)
	updated(v4)
	expect("IPv6 is late, IPv4 updated", http.StatusServiceUnavailable)
	updated(v6)
	expect("IPv6 updated", http.StatusOK)
	queued(v4, v6)
	s.wait(25 * time.Second)
	expect("both are late", http.StatusServiceUnavailable)
	updated(v4)
	expect("both were late, IPv4 updated", http.StatusServiceUnavailable)
	updated(v6)
	expect("both were late, both updated", http.StatusOK)
}

// nodes are kube-proxy's states of its node, as the control plane sends them.
var nodes = []struct {
	name     string
	state    mesh.Drain
	eligible bool
}{
	{"another taint", mesh.Drain{}, true},
	{"the taint of the autoscaler", mesh.Drain{Node: "taint ToBeDeletedByClusterAutoscaler of node a"}, false},
	{"another taint again", mesh.Drain{}, true},
	{"a deleted node", mesh.Drain{Node: "node a is being deleted"}, false},
}

func TestHealthzServer(t *testing.T) {
	inBubble(t, func(s *server) {
		answers := map[int]int{}
		expect := func(when string, code int) {
			t.Helper()
			answers[code]++
			got, b := s.ask("/healthz")
			if got != code || b.NodeEligible == nil {
				t.Errorf("%s: /healthz = %d %+v, want %d", when, got, b, code)
			}
			s.counts("sonde_lb_healthz_total", answers)
		}
		updater(s, expect)
		for _, node := range nodes {
			s.Set(node.state)
			code := http.StatusOK
			if !node.eligible {
				code = http.StatusServiceUnavailable
			}
			expect(node.name, code)
			if _, b := s.ask("/healthz"); *b.NodeEligible != node.eligible {
				t.Errorf("%s: nodeEligible = %t", node.name, *b.NodeEligible)
			}
			answers[code]++
		}
	})
}

func TestLivezServer(t *testing.T) {
	inBubble(t, func(s *server) {
		answers := map[int]int{}
		expect := func(when string, code int) {
			t.Helper()
			answers[code]++
			got, b := s.ask("/livez")
			if got != code || b.NodeEligible != nil {
				t.Errorf("%s: /livez = %d %+v, want %d", when, got, b, code)
			}
			s.counts("sonde_lb_livez_total", answers)
		}
		updater(s, expect)
		for _, node := range nodes {
			s.Set(node.state)
			expect(node.name, http.StatusOK)
		}
	})
}

// counts compares a counter with the responses so far.
func (s *server) counts(name string, answers map[int]int) {
	s.t.Helper()
	path := strings.Split(name, "_")[2]
	want := fmt.Sprintf("# HELP %s Responses to load balancers at /%s, by status code.\n# TYPE %[1]s counter\n"+
		"%[1]s{code=\"200\"} %[3]d\n%[1]s{code=\"503\"} %[4]d\n", name, path, answers[http.StatusOK], answers[http.StatusServiceUnavailable])
	if err := testutil.GatherAndCompare(s.registry, strings.NewReader(want), name); err != nil {
		s.t.Error(err)
	}
}
