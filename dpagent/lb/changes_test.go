package lb_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// TestLivez changes the state of Envoy, and checks /livez.
func TestLivez(t *testing.T) {
	const v4, v6 = "10.0.0.1", "::1"
	tests := map[string]struct {
		do         func(s *server)
		code       int
		ipv4, ipv6 bool // whether the family is healthy
	}{
		"nothing": {do: func(*server) {}, code: http.StatusOK, ipv4: true, ipv6: true},
		"just within the limit": {
			do: func(s *server) { s.envoy.receive(v4); s.wait(limit - 1) }, code: http.StatusOK, ipv4: true, ipv6: true,
		},
		"at the limit": {
			do: func(s *server) { s.envoy.receive(v4); s.wait(limit) }, code: http.StatusServiceUnavailable, ipv6: true,
		},
		"another update comes meanwhile": {
			do: func(s *server) {
				s.envoy.receive(v6)
				for range 2 {
					s.wait(limit / 2)
					s.envoy.receive(v6)
				}
				s.wait(1)
			},
			code: http.StatusServiceUnavailable, ipv4: true,
		},
		"each update is applied, and another comes": {
			do: func(s *server) {
				for range 10 {
					s.envoy.receive(v4)
					s.wait(look - 1)
					s.envoy.apply(v4)
					s.envoy.receive(v4)
					s.wait(1)
				}
			},
			code: http.StatusOK, ipv4: true, ipv6: true,
		},
		"one without an address counts for both": {
			do: func(s *server) { s.envoy.receive("ready.sock"); s.wait(limit) }, code: http.StatusServiceUnavailable,
		},
		"one that is removed": {
			do: func(s *server) {
				s.envoy.receive(v4)
				s.wait(limit / 2)
				s.envoy.set(func() { clear(s.envoy.all) })
				s.wait(limit)
			},
			code: http.StatusOK, ipv4: true, ipv6: true,
		},
		"a cluster counts for both": {
			do: func(s *server) {
				s.envoy.set(func() { receive(s.envoy.clusters, "web", "") })
				s.wait(limit)
			},
			code: http.StatusServiceUnavailable,
		},
		"a cluster is applied, and another version comes": {
			do: func(s *server) {
				for range 10 {
					s.envoy.set(func() { receive(s.envoy.clusters, "web", "") })
					s.wait(look - 1)
					s.envoy.set(func() { apply(s.envoy.clusters, "web"); receive(s.envoy.clusters, "web", "") })
					s.wait(1)
				}
			},
			code: http.StatusOK, ipv4: true, ipv6: true,
		},
		"its workers do not start": {
			do: func(s *server) {
				s.envoy.set(func() { s.envoy.starting = true })
				s.envoy.receive(v4)
				s.wait(limit)
			},
			code: http.StatusServiceUnavailable, ipv6: true,
		},
		"it does not answer": {
			do: func(s *server) {
				s.envoy.set(func() { s.envoy.broken = errors.New("hangs") })
				s.wait(limit)
			},
			code: http.StatusServiceUnavailable,
		},
		"it does not answer for a while": {
			do: func(s *server) {
				s.envoy.set(func() { s.envoy.broken = errors.New("hangs") })
				s.wait(limit - 1)
				s.envoy.set(func() { s.envoy.broken = nil })
				s.wait(limit)
			},
			code: http.StatusOK, ipv4: true, ipv6: true,
		},
		"the dump cannot be read": {
			do: func(s *server) {
				s.envoy.receive(v4)
				s.envoy.set(func() { s.envoy.spoiled = "<html>" })
				s.wait(limit + look)
			},
			code: http.StatusServiceUnavailable,
		},
		"nothing warms, and a dump cannot be read": {
			do: func(s *server) {
				s.envoy.set(func() { s.envoy.spoiled = "<html>" })
				s.wait(time.Hour)
			},
			code: http.StatusOK, ipv4: true, ipv6: true,
		},
		"its clock is set back by a day": {
			do: func(s *server) {
				s.envoy.receive(v4)
				s.envoy.set(func() { s.envoy.all["inbound:"+v4].Warming = time.Now().AddDate(0, 0, -1) })
				s.wait(limit / 2)
			},
			code: http.StatusOK, ipv4: true, ipv6: true,
		},
		"its clock is set forward by a day": {
			do: func(s *server) {
				s.envoy.receive(v4)
				s.envoy.set(func() { s.envoy.all["inbound:"+v4].Warming = time.Now().AddDate(0, 0, 1) })
				s.wait(limit + look)
			},
			code: http.StatusServiceUnavailable, ipv6: true,
		},
		"a drain does not fail /livez": {
			do: func(s *server) {
				s.Set(mesh.Drain{Terminating: true, Node: "a", Administrator: "b"})
				s.End()
				s.unready = errors.New("not ready")
			},
			code: http.StatusOK, ipv4: true, ipv6: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(s *server) {
				tc.do(s)
				code, b := s.ask("/livez")
				if code != tc.code || b.Status["IPv4"].Healthy != tc.ipv4 || b.Status["IPv6"].Healthy != tc.ipv6 {
					t.Errorf("/livez = %d %+v, want %d, IPv4 %t, IPv6 %t", code, b, tc.code, tc.ipv4, tc.ipv6)
				}
				if code != http.StatusOK {
					s.expect("as /livez", "/healthz", http.StatusServiceUnavailable, "stale")
				}
			})
		})
	}
}

// TestLastUpdated checks when everything was applied last, by family.
func TestLastUpdated(t *testing.T) {
	inBubble(t, func(s *server) {
		began := time.Now()
		s.wait(look)
		s.envoy.receive("10.0.0.1")
		s.wait(3 * look)
		_, b := s.ask("/livez")
		if got := b.Status["IPv4"].LastUpdated.Sub(began); got != look {
			t.Errorf("IPv4 is of %s, want %s", got, look)
		}
		if got := b.Status["IPv6"].LastUpdated.Sub(began); got != 4*look {
			t.Errorf("IPv6 is of %s, want %s", got, 4*look)
		}
		if !b.LastUpdated.Equal(b.Status["IPv4"].LastUpdated) || !b.CurrentTime.Equal(time.Now()) {
			t.Errorf("lastUpdated = %s, currentTime = %s, want the earlier one, and now", b.LastUpdated, b.CurrentTime)
		}
	})
}

// TestNoEnvoyYet has an agent that has not joined yet.
func TestNoEnvoyYet(t *testing.T) {
	never := newFakeEnvoy()
	never.broken = errors.New("no such file")
	inBubbleWith(t, never, func(s *server) {
		s.unready = errors.New("not joined yet")
		s.wait(time.Hour)
		if b := s.expect("an hour without Envoy", "/livez", http.StatusOK); !b.LastUpdated.IsZero() {
			t.Errorf("lastUpdated = %s, want none", b.LastUpdated)
		}
		s.expect("an hour without Envoy", "/healthz", http.StatusServiceUnavailable, "unready")
	})
}

// TestEnvoyIsSeenSoon has an Envoy that first answers just after an unanswered check.
func TestEnvoyIsSeenSoon(t *testing.T) {
	late := newFakeEnvoy()
	late.broken = errors.New("no such file")
	inBubbleWith(t, late, func(s *server) {
		s.wait(10 * time.Second)
		late.set(func() { late.broken = nil })
		s.wait(time.Second)
		if b := s.expect("a second after Envoy came", "/healthz", http.StatusOK); b.LastUpdated.IsZero() {
			t.Error("lastUpdated is not known")
		}
	})
}

// TestDumpsAreRare checks that Envoy must return a dump only while something warms, since a dump may be long.
func TestDumpsAreRare(t *testing.T) {
	inBubble(t, func(s *server) {
		s.wait(time.Hour)
		s.envoy.set(func() {
			if n := len(s.envoy.asked); n < 700 || n > 730 {
				t.Errorf("Envoy got %d requests in an hour", n)
			}
			for _, path := range s.envoy.asked {
				if !strings.HasPrefix(path, "/stats") {
					t.Fatalf("Envoy got a request for %s", path)
				}
			}
		})
		for range 100 { // load balancers cause no requests to Envoy
			s.ask("/livez")
		}
		s.envoy.set(func() {
			if n := len(s.envoy.asked); n > 730 {
				t.Errorf("Envoy got %d requests", n)
			}
		})
	})
}
