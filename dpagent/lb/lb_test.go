package lb_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/lb"
)

func TestReasons(t *testing.T) {
	const served = "too few of service web are left"
	tests := map[string]struct {
		state    mesh.Drain
		told     bool
		begun    bool
		unready  error
		want     []string
		eligible bool
		gauge    []string
	}{
		"nothing":                     {eligible: true},
		"the pod is deleted":          {state: mesh.Drain{Terminating: true}, want: []string{"terminating"}, eligible: true, gauge: []string{"terminating"}},
		"the agent is told to end":    {told: true, want: []string{"terminating"}, eligible: true, gauge: []string{"terminating"}},
		"the pod begins to end":       {begun: true, want: []string{"terminating"}, eligible: true, gauge: []string{"terminating"}},
		"both":                        {state: mesh.Drain{Terminating: true}, told: true, want: []string{"terminating"}, eligible: true, gauge: []string{"terminating"}},
		"the node goes":               {state: mesh.Drain{Node: "taint"}, want: []string{"node"}, gauge: []string{"node"}},
		"an administrator":            {state: mesh.Drain{Administrator: "kernel"}, want: []string{"administrator"}, eligible: true, gauge: []string{"administrator"}},
		"all of them":                 {state: mesh.Drain{Terminating: true, Node: "a", Administrator: "b"}, want: []string{"terminating", "node", "administrator"}, gauge: []string{"administrator", "node", "terminating"}},
		"guarded":                     {state: mesh.Drain{Node: "a", Administrator: "b", ServesOn: served}, eligible: true, gauge: []string{"administrator", "node", "served_on"}},
		"guarded, and deleted":        {state: mesh.Drain{Terminating: true, Node: "a", ServesOn: served}, want: []string{"terminating"}, eligible: true, gauge: []string{"node", "served_on", "terminating"}},
		"guarded, and told to end":    {state: mesh.Drain{Node: "a", ServesOn: served}, told: true, want: []string{"terminating"}, eligible: true, gauge: []string{"node", "served_on", "terminating"}},
		"guarded for nothing":         {state: mesh.Drain{ServesOn: served}, eligible: true, gauge: []string{"served_on"}},
		"not ready":                   {unready: errors.New("no certificate"), want: []string{"unready"}, eligible: true},
		"guarded, and not ready":      {state: mesh.Drain{Node: "a", ServesOn: served}, unready: errors.New("no"), want: []string{"unready"}, eligible: true, gauge: []string{"node", "served_on"}},
		"known results need no check": {told: true, unready: errors.New("slow"), want: []string{"terminating"}, eligible: true, gauge: []string{"terminating"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(s *server) {
				s.unready, s.begun = tc.unready, tc.begun
				s.Set(tc.state)
				if tc.told {
					s.End()
				}
				code := http.StatusOK
				if tc.want != nil {
					code = http.StatusServiceUnavailable
				}
				if b := s.expect("now", "/healthz", code, tc.want...); b.NodeEligible == nil || *b.NodeEligible != tc.eligible {
					t.Errorf("nodeEligible = %v, want %t", b.NodeEligible, tc.eligible)
				}
				s.expect("never for a drain", "/livez", http.StatusOK)
				if diff := cmp.Diff(tc.gauge, s.draining(), cmpEmpty); diff != "" {
					t.Errorf("sonde_lb_draining (-want +got):\n%s", diff)
				}
				if applies := tc.state.Applies(); applies && code == http.StatusOK {
					t.Errorf("%+v applies", tc.state)
				}
				s.Set(mesh.Drain{})
				s.unready = nil
				if !tc.told && !tc.begun { // shutdown is final
					s.expect("reversed", "/healthz", http.StatusOK)
				}
			})
		})
	}
}

// cmpEmpty treats a nil slice and an empty one as equal.
var cmpEmpty = cmp.Transformer("empty", func(s []string) []string { return append([]string{}, s...) })

// draining returns the reasons that the gauge has at 1.
func (s *server) draining() (reasons []string) {
	s.t.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "sonde_lb_draining" && m.GetGauge().GetValue() == 1 {
				reasons = append(reasons, m.GetLabel()[0].GetValue())
			}
		}
	}
	return reasons
}

func TestRequests(t *testing.T) {
	tests := map[string]struct {
		method, target string
		want           int
		allow          string
	}{
		"GET":              {http.MethodGet, "/healthz", http.StatusOK, ""},
		"HEAD":             {http.MethodHead, "/livez", http.StatusOK, ""},
		"a query":          {http.MethodGet, "/livez?verbose&exclude=x", http.StatusOK, ""},
		"POST":             {http.MethodPost, "/healthz", http.StatusMethodNotAllowed, "GET, HEAD"},
		"OPTIONS":          {http.MethodOptions, "/livez", http.StatusMethodNotAllowed, "GET, HEAD"},
		"of a supervisor":  {http.MethodGet, "/readyz", http.StatusNotFound, ""},
		"metrics":          {http.MethodGet, "/metrics", http.StatusNotFound, ""},
		"nothing":          {http.MethodGet, "/", http.StatusNotFound, ""},
		"a check":          {http.MethodGet, "/livez/envoy", http.StatusNotFound, ""},
		"a slash too much": {http.MethodGet, "//healthz", http.StatusNotFound, ""},
		"upper case":       {http.MethodGet, "/HEALTHZ", http.StatusNotFound, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(s *server) {
				w := httptest.NewRecorder()
				s.ServeHTTP(w, httptest.NewRequest(tc.method, tc.target, http.NoBody))
				if w.Code != tc.want || w.Header().Get("Allow") != tc.allow {
					t.Errorf("%d, Allow: %q, want %d, %q", w.Code, w.Header().Get("Allow"), tc.want, tc.allow)
				}
				if kind := w.Header().Get("Content-Type"); tc.want == http.StatusOK && kind != "application/json" {
					t.Errorf("Content-Type: %s", kind)
				}
				if n := testutil.CollectAndCount(s.registry, "sonde_lb_healthz_total"); n != 2 {
					t.Errorf("%d codes are counted, want 200 and 503 alone", n)
				}
			})
		})
	}
}

func TestDetailsAreForThisHost(t *testing.T) {
	tests := map[string]struct {
		remote, header string
		want           bool
	}{
		"loopback":             {remote: "127.0.0.1:1", want: true},
		"loopback, IPv6":       {remote: "[::1]:1", want: true},
		"elsewhere":            {remote: "192.0.2.1:1"},
		"a proxy on this host": {remote: "127.0.0.1:1", header: "X-Forwarded-For"},
		"an unknown remote":    {remote: "@"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(s *server) {
				s.Set(mesh.Drain{Node: "taint of node secret-1"})
				r := httptest.NewRequest(http.MethodGet, "/healthz", http.NoBody)
				r.RemoteAddr = tc.remote
				if tc.header != "" {
					r.Header.Set(tc.header, "192.0.2.1")
				}
				code, b := s.send(r)
				if code != http.StatusServiceUnavailable || !slices.Equal(b.Reasons, []string{"node"}) {
					t.Errorf("%d %q, want the reason for all", code, b.Reasons)
				}
				if got := strings.Contains(strings.Join(b.Details, " "), "secret-1"); got != tc.want {
					t.Errorf("details = %q, want them: %t", b.Details, tc.want)
				}
			})
		})
	}
}

// TestEnding checks since when /healthz fails because the proxy shuts down, in minutes.
func TestEnding(t *testing.T) {
	deleted, node := mesh.Drain{Terminating: true}, mesh.Drain{Node: "taint"}
	tests := map[string]struct {
		minutes []func(*lb.Server)
		want    int // -1: it does not
	}{
		"never":                       {nil, -1},
		"a node that goes is no end":  {[]func(*lb.Server){set(node)}, -1},
		"told":                        {[]func(*lb.Server){nil, (*lb.Server).End}, 1},
		"told twice":                  {[]func(*lb.Server){(*lb.Server).End, (*lb.Server).End}, 0},
		"deleted, then told":          {[]func(*lb.Server){nil, set(deleted), nil, (*lb.Server).End}, 1},
		"told, then deleted":          {[]func(*lb.Server){(*lb.Server).End, set(deleted)}, 0},
		"deleted, told again":         {[]func(*lb.Server){set(deleted), set(mesh.Drain{Terminating: true, Node: "a"})}, 0},
		"reversed":                    {[]func(*lb.Server){set(deleted), set(mesh.Drain{})}, -1},
		"reversed, told":              {[]func(*lb.Server){set(deleted), set(mesh.Drain{}), (*lb.Server).End}, 2},
		"by a worker that has died":   {[]func(*lb.Server){nil, nil, resume(deleted, -time.Minute), (*lb.Server).End}, 1},
		"which was of the future":     {[]func(*lb.Server){nil, nil, resume(deleted, time.Hour)}, 2},
		"which had not ended":         {[]func(*lb.Server){resume(node, -time.Minute)}, -1},
		"and is deleted, still":       {[]func(*lb.Server){nil, resume(deleted, -time.Minute), set(deleted)}, 0},
		"and is deleted, differently": {[]func(*lb.Server){nil, resume(deleted, -time.Minute), set(mesh.Drain{Terminating: true, Node: "a"})}, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(s *server) {
				began := time.Now()
				for _, do := range tc.minutes {
					if do != nil {
						do(s.Server)
					}
					s.wait(time.Minute)
				}
				var want time.Time
				if tc.want >= 0 {
					want = began.Add(time.Duration(tc.want) * time.Minute)
				}
				if got := s.Ending(); !got.Equal(want) {
					t.Errorf("Ending() = %s, want %s", got, want)
				}
			})
		})
	}
}

func set(d mesh.Drain) func(*lb.Server) { return func(s *lb.Server) { s.Set(d) } }

// resume resumes a state that began this long after now.
func resume(d mesh.Drain, after time.Duration) func(*lb.Server) {
	return func(s *lb.Server) {
		state := lb.State{Drain: d}
		if d.Terminating {
			state.Terminating = time.Now().Add(after)
		}
		s.Resume(state)
	}
}

func TestStateGoesOn(t *testing.T) {
	inBubble(t, func(s *server) {
		if s.Set(mesh.Drain{}) {
			t.Error("Set() reports a change for an unchanged state")
		}
		d := mesh.Drain{Terminating: true, Node: "taint of node a", Administrator: "b", ServesOn: "c"}
		if !s.Set(d) || s.Set(d) {
			t.Error("Set() reports a wrong change")
		}
		state := s.State()
		s.Set(mesh.Drain{})
		s.Resume(state)
		if diff := cmp.Diff(state, s.State()); diff != "" {
			t.Errorf("State() (-want +got):\n%s", diff)
		}
		s.expect("resumed", "/healthz", http.StatusServiceUnavailable, "terminating")
	})
}
