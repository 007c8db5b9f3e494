package lb_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/dpagent/lb"
	"github.com/sonde-mesh/sonde/health"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	limit = 10 * time.Second
	// look is how often Envoy is checked; changes of Envoy are seen after it.
	look = 5 * time.Second
)

// fakeEnvoy responds like the admin interface of Envoy 1.40.
type fakeEnvoy struct {
	mu       sync.Mutex
	starting bool  // its workers have not started
	broken   error // its error for every request
	spoiled  string
	asked    []string
	all      map[string]*fakeListener
	clusters map[string]*fakeListener
}

// fakeListener is a listener or a cluster.
type fakeListener struct {
	Address         string
	Active, Warming time.Time
}

func newFakeEnvoy() *fakeEnvoy {
	return &fakeEnvoy{all: map[string]*fakeListener{}, clusters: map[string]*fakeListener{}}
}

func (e *fakeEnvoy) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

// receive makes Envoy receive a listener for an address.
func (e *fakeEnvoy) receive(address string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	receive(e.all, "inbound:"+address, address)
}

func receive(all map[string]*fakeListener, name, address string) {
	if all[name] == nil {
		all[name] = &fakeListener{Address: address}
	}
	all[name].Warming = time.Now()
}

// apply makes Envoy apply what it has received for an address.
func (e *fakeEnvoy) apply(address string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	apply(e.all, "inbound:"+address)
}

func apply(all map[string]*fakeListener, name string) {
	if l := all[name]; l != nil && !l.Warming.IsZero() {
		l.Active, l.Warming = l.Warming, time.Time{}
	}
}

func count(all map[string]*fakeListener, which func(*fakeListener) bool) (n int) {
	for _, l := range all {
		if which(l) {
			n++
		}
	}
	return n
}

func warms(l *fakeListener) bool { return !l.Warming.IsZero() }

// Get implements lb.Admin.
func (e *fakeEnvoy) Get(_ context.Context, path string) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = append(e.asked, path)
	switch {
	case e.broken != nil:
		return nil, e.broken
	case strings.HasPrefix(path, "/stats"):
		return e.gauges(), nil
	case e.spoiled != "":
		return []byte(e.spoiled), nil
	case strings.Contains(path, "dynamic_listeners"):
		return e.listeners(), nil
	case strings.Contains(path, "dynamic_warming_clusters"):
		return e.clusterDump(func(l *fakeListener) time.Time { return l.Warming }), nil
	case strings.Contains(path, "dynamic_active_clusters"):
		return e.clusterDump(func(l *fakeListener) time.Time { return l.Active }), nil
	}
	return nil, errors.New("404 Not Found")
}

func (e *fakeEnvoy) gauges() []byte {
	warming, active, started := count(e.all, warms), len(e.all), 1
	if e.starting {
		warming, started = 0, 0
	}
	return fmt.Appendf(nil, "cluster_manager.warming_clusters: %d\nlistener_manager.total_listeners_active: %d\n"+
		"listener_manager.total_listeners_warming: %d\nlistener_manager.workers_started: %d\n", count(e.clusters, warms), active, warming, started)
}

func dump(entries []any) []byte {
	text, err := json.Marshal(map[string]any{"configs": entries})
	if err != nil {
		panic(err)
	}
	return text
}

func (e *fakeEnvoy) listeners() []byte {
	var entries []any
	for name, l := range e.all {
		entry := map[string]any{"name": name}
		if !l.Active.IsZero() {
			entry["active_state"] = map[string]any{"last_updated": l.Active}
		}
		if !l.Warming.IsZero() {
			address := map[string]any{"socket_address": map[string]any{"address": l.Address, "port_value": 80}}
			if strings.HasSuffix(l.Address, ".sock") {
				address = map[string]any{"pipe": map[string]any{"path": l.Address}}
			}
			entry["warming_state"] = map[string]any{"version_info": "x", "last_updated": l.Warming, "listener": map[string]any{"address": address}}
		}
		entries = append(entries, entry)
	}
	entries = append(entries, map[string]any{"name": "refused"}) // its error_state is not requested
	return dump(entries)
}

func (e *fakeEnvoy) clusterDump(updated func(*fakeListener) time.Time) []byte {
	var entries []any
	for name, l := range e.clusters {
		if at := updated(l); !at.IsZero() {
			entries = append(entries, map[string]any{"cluster": map[string]any{"name": name}, "last_updated": at})
		}
	}
	return dump(entries)
}

// server is a server with its Envoy, in a bubble of synctest.
type server struct {
	*lb.Server
	t        *testing.T
	envoy    *fakeEnvoy
	registry *prometheus.Registry
	unready  error
	begun    bool
}

// inBubble runs a test with a server that follows an Envoy.
func inBubble(t *testing.T, test func(s *server)) {
	t.Helper()
	inBubbleWith(t, newFakeEnvoy(), test)
}

func inBubbleWith(t *testing.T, envoy *fakeEnvoy, test func(s *server)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &server{t: t, envoy: envoy, registry: prometheus.NewRegistry()}
		s.Server = lb.New(lb.Options{
			Begun: func() bool { return s.begun }, FromThisHost: health.New(health.Options{}).FromThisHost,
			Ready: func(context.Context) error { return s.unready }, Limit: limit, Registerer: s.registry,
		})
		ctx, cancel := context.WithCancel(t.Context())
		var following sync.WaitGroup
		following.Go(func() { s.Follow(ctx, s.envoy) })
		defer following.Wait()
		defer cancel()
		synctest.Wait()
		test(s)
	})
}

// wait lets time pass, and waits until its effects are complete.
func (s *server) wait(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// body is the body of a response, as clients read it.
type body struct {
	LastUpdated, CurrentTime time.Time
	Healthy                  bool
	NodeEligible             *bool
	Status                   map[string]struct {
		LastUpdated time.Time
		Healthy     bool
	}
	Reasons, Details []string
}

// ask sends a request from this host.
func (s *server) ask(path string) (int, body) {
	s.t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	r.RemoteAddr = "127.0.0.1:1"
	return s.send(r)
}

func (s *server) send(r *http.Request) (int, body) {
	s.t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	var b body
	if err := json.Unmarshal(w.Body.Bytes(), &b); err != nil {
		s.t.Fatalf("%s %s: %v: %s", r.Method, r.URL, err, w.Body)
	}
	if b.Healthy != (w.Code == http.StatusOK) {
		s.t.Errorf("%s: %d, but the body says healthy: %t", r.URL, w.Code, b.Healthy)
	}
	return w.Code, b
}

// expect sends a request, and compares the code and the reasons.
func (s *server) expect(when, path string, code int, reasons ...string) body {
	s.t.Helper()
	got, b := s.ask(path)
	if got != code || !slices.Equal(b.Reasons, reasons) {
		s.t.Errorf("%s: %s = %d %q, want %d %q", when, path, got, b.Reasons, code, reasons)
	}
	return b
}
