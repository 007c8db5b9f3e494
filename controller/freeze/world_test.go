package freeze

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/identity/secret"
	"github.com/sonde-mesh/sonde/partition"
)

// world is what replicas see: zones a and b have four nodes each, such as a0 to a3, with 4 proxies on each node.
type world struct {
	zones    []string
	mu       sync.Mutex
	unknown  map[string]bool
	away     error // error of the API server, if it does not answer
	silent   map[string]time.Time
	streams  map[string]bool
	complete bool
	asked    int
	lacking  []string
	secrets  memorySecrets
}

func newWorld() *world {
	return &world{zones: []string{"a", "b"}, unknown: map[string]bool{}, silent: map[string]time.Time{}, streams: map[string]bool{}, complete: true, secrets: memorySecrets{}}
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// lose makes the kubelets and the proxies of a zone silent from now on.
func (w *world) lose(zone string) {
	w.set(func() {
		for i := range 4 {
			w.unknown[fmt.Sprint(zone, i)] = true
		}
		for i := range 16 {
			w.silent[fmt.Sprint(zone, "-", i)] = time.Now()
		}
	})
}

func (w *world) find() {
	w.set(func() { clear(w.unknown); clear(w.silent) })
}

func (w *world) nodes() (map[string]Node, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := map[string]Node{}
	for _, zone := range w.zones {
		for i := range 4 {
			name := fmt.Sprint(zone, i)
			all[name] = Node{Zone: zone, Unknown: w.unknown[name]}
		}
	}
	return all, w.away
}

func (w *world) proxies(now time.Time) []partition.Member {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []partition.Member
	for _, zone := range w.zones {
		for i := range 16 {
			m := partition.Member{Name: fmt.Sprint(zone, "-", i), Zone: zone, Heard: now}
			if since, is := w.silent[m.Name]; is {
				m.Heard = since
			}
			all = append(all, m)
		}
	}
	return all
}

// replica is a replica of the control plane.
type replica struct {
	*Freeze
	mu      sync.Mutex
	kept    map[string]int
	told    int
	reasons []string
}

func (w *world) replica(t *testing.T, secrets bool) *replica {
	t.Helper()
	r := &replica{}
	o := Options{
		Nodes: w.nodes, Proxies: w.proxies, Mode: Enforce, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		Streams: func(context.Context) (map[string]bool, bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.asked++
			return maps.Clone(w.streams), w.complete
		},
		Lacking: func() []string {
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Clone(w.lacking)
		},
		Apply: func(kept map[string]int) { r.mu.Lock(); defer r.mu.Unlock(); r.kept = kept },
		Tell:  func() { r.mu.Lock(); defer r.mu.Unlock(); r.told++ },
		Record: func(e events.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.reasons = append(r.reasons, e.Reason+" "+e.FieldPath)
		},
	}
	if secrets {
		o.Secrets = w.secrets
	}
	r.Freeze = New(o)
	return r
}

// lead makes the replica lead until stop is called.
func (r *replica) lead(t *testing.T, epoch int64) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Lead(ctx, epoch) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func (r *replica) wantVerdict(t *testing.T, want string) {
	t.Helper()
	synctest.Wait()
	if got := r.Verdict().text(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func (r *replica) wantKept(t *testing.T, want map[string]int) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if diff := cmp.Diff(want, r.kept); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}

func (w *world) stream(zone string, n int) {
	for i := range n {
		w.streams[fmt.Sprint(zone, "-", i)] = true
	}
}

// memorySecrets keeps Secrets in memory.
type memorySecrets map[string]memorySecret

type memorySecret struct {
	data    []byte
	version int
}

func (m memorySecrets) version(name string) int { return m[name].version }

func (m memorySecrets) Read(_ context.Context, name string) ([]byte, string, error) {
	s, is := m[name]
	if !is {
		return nil, "", fs.ErrNotExist
	}
	return s.data, strconv.Itoa(s.version), nil
}

func (m memorySecrets) Create(_ context.Context, name string, data []byte) (string, error) {
	if _, is := m[name]; is {
		return "", fs.ErrExist
	}
	m[name] = memorySecret{data, 1}
	return "1", nil
}

func (m memorySecrets) Update(_ context.Context, name string, data []byte, version string) (string, error) {
	s := m[name]
	if strconv.Itoa(s.version) != version {
		return "", secret.ErrConflict
	}
	m[name] = memorySecret{data, s.version + 1}
	return strconv.Itoa(s.version + 1), nil
}
