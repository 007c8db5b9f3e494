package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/waittest"
)

// running is a control plane that runs until the test ends.
type running struct {
	t      *testing.T
	health string // URL
	stop   func()
	ended  chan error
}

// run starts a control plane, and waits until it is ready.
func run(t *testing.T, o Options) *running {
	t.Helper()
	cp, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, ended: make(chan error, 1), stop: cancel}
	go func() {
		r.ended <- cp.Run(ctx)
		close(r.ended)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-r.ended; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	await(t, "the health port", func() bool {
		data, err := os.ReadFile(filepath.Join(o.StateDir, addressesFile))
		var addresses map[string]string
		if err != nil || json.Unmarshal(data, &addresses) != nil {
			return false
		}
		r.health = "http://" + addresses["health"]
		return true
	})
	await(t, "its readiness", func() bool { code, _ := r.get("/readyz"); return code == http.StatusOK })
	return r
}

// await waits until something holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	waittest.Holds(t, 20*time.Second, what, holds)
}

func (r *running) get(path string) (int, string) {
	r.t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	response, err := client.Get(r.health + path)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func (r *running) want(path string, code int, text string) {
	r.t.Helper()
	if got, body := r.get(path); got != code || !strings.Contains(body, text) {
		r.t.Errorf("%s: %d %q, want %d and %q", path, got, body, code, text)
	}
}

// brokenPipe is a log that takes no message with a certain text while it is locked, as a pipe whose reader has stopped.
type brokenPipe struct {
	slog.Handler
	text string
	sync.Mutex
	hangs atomic.Int32

	kept   sync.Mutex
	stacks []string // of the fan-out when it is stuck
}

func (*brokenPipe) Enabled(context.Context, slog.Level) bool { return true }

func (p *brokenPipe) Handle(_ context.Context, r slog.Record) error { //nolint:gocritic // slog.Handler
	if r.Message == p.text {
		p.hangs.Add(1)
		p.Lock()
		defer p.Unlock()
		p.hangs.Add(-1)
	}
	attributes := map[string]string{}
	r.Attrs(func(a slog.Attr) bool {
		attributes[a.Key] = a.Value.String()
		return true
	})
	if attributes["loop"] == "view" {
		p.kept.Lock()
		defer p.kept.Unlock()
		p.stacks = append(p.stacks, attributes["stacks"])
	}
	return nil
}

func (p *brokenPipe) told() []string {
	p.kept.Lock()
	defer p.kept.Unlock()
	return p.stacks
}

const meshFile = "mesh.yaml"

func writeMesh(t *testing.T, o *Options, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(o.storeDirectory(), meshFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The fan-out waits for a lock that nobody releases: livez fails, names it, and the log says once where it stands.
func TestDeadlockOfTheFanOut(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		limit time.Duration // of a turn of the fan-out
		dead  bool
	}{
		"deadlock":  {time.Second, true},
		"slow turn": {time.Minute, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pipe := &brokenPipe{Handler: slog.DiscardHandler, text: "view published"}
			o := local(t)
			o.Logger, o.loopLimit = slog.New(pipe), tc.limit
			r := run(t, o)
			await(t, "the end of the first turn", func() bool { return pipe.hangs.Load() == 0 })
			pipe.Lock()
			defer pipe.Unlock()
			began := time.Now()
			writeMesh(t, &o, "type: Mesh\nname: shop\n")
			await(t, "the deadlock", func() bool { return pipe.hangs.Load() == 1 })
			if !tc.dead {
				<-time.After(time.Second)
				r.want("/livez", http.StatusOK, "ok")
				if len(pipe.told()) > 0 {
					t.Errorf("the log says %q", pipe.told())
				}
				return
			}
			await(t, "a livez that fails", func() bool { code, _ := r.get("/livez"); return code == http.StatusServiceUnavailable })
			t.Logf("found %s after the change", time.Since(began).Round(time.Millisecond))
			r.want("/livez", http.StatusServiceUnavailable, `[-]loop-view failed: loop "view" has made no progress since `)
			r.want("/livez/loop-agents", http.StatusOK, "ok")
			<-time.After(1500 * time.Millisecond) // the check runs again
			r.want("/livez/loop-view", http.StatusServiceUnavailable, "its limit is 1s")
			if told := pipe.told(); len(told) != 1 || !strings.Contains(told[0], "(*Pipeline).apply") {
				t.Errorf("the log has the stacks %q, want that of the fan-out, once", told)
			}
		})
	}
}

// A folder that cannot be read makes the control plane neither dead nor unready: it serves what it has read.
func TestUnreadableStore(t *testing.T) {
	t.Parallel()
	o := local(t)
	writeMesh(t, &o, "type: Mesh\nname: default\n")
	r := run(t, o)
	r.storeRead()
	r.want("/metrics", http.StatusOK, "\nsonde_store_staleness_seconds 0\n")
	away := o.storeDirectory() + ".away"
	if err := os.Rename(o.storeDirectory(), away); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.storeDirectory(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, "the warning", func() bool {
		_, body := r.get("/readyz?verbose")
		return strings.Contains(body, "[!]store warning: not heard for ")
	})
	r.want("/livez", http.StatusOK, "ok")
	r.want("/readyz", http.StatusOK, "ok")
	if _, body := r.get("/metrics"); strings.Contains(body, "\nsonde_store_staleness_seconds 0\n") {
		t.Error("the store is not stale")
	}
	if err := os.Remove(o.storeDirectory()); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(away, o.storeDirectory()); err != nil {
		t.Fatal(err)
	}
	r.storeRead()
	r.want("/metrics", http.StatusOK, "\nsonde_store_staleness_seconds 0\n")
}

func TestExpiredCAs(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64
	o := local(t)
	o.now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	writeMesh(t, &o, `type: Mesh
name: short
mtls:
  enabledBackend: ca
  backends: [{name: ca, type: builtin, conf: {caCert: {expiration: 48h}}}]
`)
	r := run(t, o)
	ahead.Store(int64(72 * time.Hour))
	await(t, "readyz that fails", func() bool { code, _ := r.get("/readyz"); return code == http.StatusServiceUnavailable })
	r.want("/readyz", http.StatusServiceUnavailable, `[-]ca failed: the CA of mesh "short" has expired at `)
	r.want("/readyz?exclude=ca", http.StatusOK, "ok")
	r.want("/livez", http.StatusOK, "ok")
	ahead.Store(int64(11 * 365 * 24 * time.Hour)) // the CA of the control plane itself
	await(t, "agents that refuse the control plane", func() bool {
		_, body := r.get("/readyz")
		return strings.Contains(body, "[-]xds failed: connect as an agent: ")
	})
	r.want("/livez", http.StatusOK, "ok")
}

// A control plane that is to end says so at once, and serves on for a while.
func TestDraining(t *testing.T) {
	t.Parallel()
	o := local(t)
	o.ShutdownDelay = 8 * time.Second
	r := run(t, o)
	r.want("/healthz", http.StatusOK, "ok")
	began := time.Now()
	r.stop()
	await(t, "the end of readiness", func() bool { code, _ := r.get("/readyz"); return code != http.StatusOK })
	if took := time.Since(began); took > o.ShutdownDelay/2 {
		t.Errorf("it takes %s to be unready", took)
	}
	r.want("/healthz", http.StatusServiceUnavailable, "[-]draining failed: the control plane was asked to end")
	r.want("/readyz?exclude=draining", http.StatusOK, "ok")
	r.want("/readyz/xds", http.StatusOK, "ok")
	r.want("/livez", http.StatusOK, "ok")
	if err := <-r.ended; err != nil {
		t.Errorf("Run() = %v", err)
	}
	if took := time.Since(began); took < o.ShutdownDelay {
		t.Errorf("it ended after %s, want at least %s", took, o.ShutdownDelay)
	}
}

// storeRead waits for the check of the store, which is informational: a control plane is ready without it.
func (r *running) storeRead() {
	r.t.Helper()
	await(r.t, "a store that is read", func() bool { _, body := r.get("/readyz?verbose"); return strings.Contains(body, "\n[+]store ok\n") })
}

// runs returns how often a check of readyz has been run and has passed.
func (r *running) runs(name string) int {
	r.t.Helper()
	_, metrics := r.get("/metrics")
	_, after, _ := strings.Cut(metrics, `sonde_healthchecks_total{group="readyz",name="`+name+`",status="success"} `)
	var runs int
	if _, err := fmt.Sscan(after, &runs); err != nil {
		r.t.Fatalf("runs of %s: %v", name, err)
	}
	return runs
}

// A thousand questions cost one run of each check per age of its result.
func TestManyProbes(t *testing.T) {
	r := run(t, local(t))
	ages := map[string]time.Duration{
		"draining": keepDraining, "synced": time.Second, "view": time.Second, "xds": keepXDS, "ca": time.Second, "served-state": keepServed,
		"store": time.Second, "state": time.Second,
	}
	r.storeRead()
	before, began := map[string]int{}, time.Now()
	for name := range ages {
		before[name] = r.runs(name)
	}
	var callers sync.WaitGroup
	for range 10 {
		callers.Go(func() {
			for range 100 {
				r.want("/readyz", http.StatusOK, "ok")
			}
		})
	}
	callers.Wait()
	took := time.Since(began)
	for name, age := range ages {
		if runs, most := r.runs(name)-before[name], 1+int(took/age); runs > most {
			t.Errorf("%s: %d runs in %s, want at most %d", name, runs, took, most)
		}
	}
}
