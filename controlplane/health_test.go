package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// running is a control plane that runs until the test ends.
type running struct {
	t      *testing.T
	client http.Client
	health string // URL
	stop   func()
	ended  chan error
}

// startPlane starts a control plane, and waits until it is ready.
func startPlane(t *testing.T, o Options) *running {
	t.Helper()
	cp, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{
		t: t, ended: make(chan error, 1), stop: cancel,
		client: http.Client{Transport: &http.Transport{DialContext: o.Dial, DisableKeepAlives: true}, Timeout: 10 * time.Second},
	}
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
	wait.For(t, what, holds)
}

func (r *running) get(path string) (int, string) {
	r.t.Helper()
	response, err := r.client.Get(r.health + path)
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

// brokenPipe is a log that blocks on messages with a certain text while it is broken, like a pipe whose reader has
// stopped.
type brokenPipe struct {
	slog.Handler
	text   string
	broken atomic.Bool
	mended chan struct{} // closed when the pipe is repaired
	hangs  atomic.Int32

	kept   sync.Mutex
	stacks []string // stacks that were logged while the fan-out was stuck
}

func (*brokenPipe) Enabled(context.Context, slog.Level) bool { return true }

func (p *brokenPipe) Handle(_ context.Context, r slog.Record) error { //nolint:gocritic // slog.Handler
	if r.Message == p.text && p.broken.Load() {
		p.hangs.Add(1)
		<-p.mended
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

// The fan-out waits for a lock that is never released: livez fails and names it, and the log shows once where it waits.
func TestDeadlockOfTheFanOut(t *testing.T) {
	tests := map[string]struct {
		limit time.Duration // limit of one round of the fan-out
		dead  bool
	}{
		"deadlock":  {time.Second, true},
		"slow turn": {time.Minute, false},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			pipe := &brokenPipe{Handler: slog.DiscardHandler, text: "published view", mended: make(chan struct{})}
			o := local(t)
			o.Logger, o.loopLimit = slog.New(pipe), tc.limit
			r := startPlane(t, o)
			synctest.Wait()
			pipe.broken.Store(true)
			defer close(pipe.mended)
			writeMesh(t, &o, "type: Mesh\nname: shop\n")
			await(t, "the deadlock", func() bool { return pipe.hangs.Load() == 1 })
			time.Sleep(900 * time.Millisecond)
			r.want("/livez", http.StatusOK, "ok")
			time.Sleep(2 * time.Second) // the check runs again
			if !tc.dead {
				r.want("/livez", http.StatusOK, "ok")
				if len(pipe.told()) > 0 {
					t.Errorf("the log says %q", pipe.told())
				}
				return
			}
			r.want("/livez", http.StatusServiceUnavailable, `[-]loop-view failed: loop "view" has made no progress since `)
			r.want("/livez/loop-agents", http.StatusOK, "ok")
			r.want("/livez/loop-view", http.StatusServiceUnavailable, "limit 1s")
			if told := pipe.told(); len(told) != 1 || !strings.Contains(told[0], "(*Pipeline).apply") {
				t.Errorf("the log has the stacks %q, want the fan-out's, once", told)
			}
		})
	}
}

// If the directory cannot be read, the control plane is neither dead nor unready: it serves what it has read.
func TestUnreadableStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := local(t)
		writeMesh(t, &o, "type: Mesh\nname: default\n")
		r := startPlane(t, o)
		r.storeRead()
		r.want("/metrics", http.StatusOK, "\nsonde_store_staleness_seconds 0\n")
		away := o.storeDirectory() + ".away"
		if err := os.Rename(o.storeDirectory(), away); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(o.storeDirectory(), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(scanned)
		r.want("/readyz?verbose", http.StatusOK, "[!]store warning: unreachable for ")
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
	})
}

func TestExpiredCAs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		o := local(t)
		o.now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		writeMesh(t, &o, `type: Mesh
name: short
mtls:
  enabledBackend: ca
  backends: [{name: ca, type: builtin, conf: {caCert: {expiration: 48h}}}]
`)
		r := startPlane(t, o)
		ahead.Store(int64(72 * time.Hour))
		await(t, "readyz that fails", func() bool { code, _ := r.get("/readyz"); return code == http.StatusServiceUnavailable })
		r.want("/readyz", http.StatusServiceUnavailable, `[-]ca failed: the CA of mesh "short" has expired at `)
		r.want("/readyz?exclude=ca", http.StatusOK, "ok")
		r.want("/livez", http.StatusOK, "ok")
		ahead.Store(int64(11 * 365 * 24 * time.Hour)) // the control plane's own CA has expired, too
		await(t, "agents that refuse the control plane", func() bool {
			_, body := r.get("/readyz")
			return strings.Contains(body, "[-]xds failed: connect as an agent: ")
		})
		r.want("/livez", http.StatusOK, "ok")
	})
}

// strictMesh is the Mesh default in mode STRICT.
const strictMesh = "type: Mesh\nname: default\nmtls: {enabledBackend: ca, backends: [{name: ca, type: builtin, mode: STRICT}]}\n"

// A clock that was set back makes certificates of the control plane invalid, but only by this clock: the control plane
// keeps serving, and reports that until the clock is right.
func TestClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var back atomic.Int64
		var log bytes.Buffer
		o := local(t)
		o.now = func() time.Time { return time.Now().Add(-time.Duration(back.Load())) }
		o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
		writeMesh(t, &o, strictMesh)
		r := startPlane(t, o)
		r.storeRead()
		r.want("/readyz?verbose", http.StatusOK, "\n[+]clock ok\n")
		back.Store(int64(48 * time.Hour))
		time.Sleep(time.Minute)
		r.want("/readyz?verbose", http.StatusOK, "[!]clock warning: the CA of the control plane is not valid before 1999-12-31T00:00:00Z, in 23h5")
		r.want("/readyz?verbose", http.StatusOK, "the CA of mesh default is not valid before 1999-12-31T00:00:00Z, in 23h5")
		r.want("/readyz/xds", http.StatusOK, "ok")
		r.want("/livez", http.StatusOK, "ok")
		back.Store(0)
		time.Sleep(time.Minute)
		r.want("/readyz?verbose", http.StatusOK, "\n[+]clock ok\n")
		r.stop()
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "level=ERROR"); n != 1 {
			t.Errorf("%d errors in the log, want one:\n%s", n, log.String())
		}
	})
}

// A firewall drops IPv4 to the port for agents, and then IPv6, on a host with both.
func TestPortBlockedForOneFamily(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, o := virtual.NewNetwork(), local(t)
		o.BindAddress, o.HealthAddress, o.Listen, o.Dial = DefaultBindAddress, "127.0.0.1:80", n.Listen, n.DialFrom("10.0.0.1")
		o.addresses = func() ([]net.Addr, error) {
			return []net.Addr{&net.IPNet{IP: net.IPv4(10, 0, 0, 1)}, &net.IPNet{IP: net.ParseIP("fd00::1")}, &net.IPNet{IP: net.IPv6loopback}}, nil
		}
		r := startPlane(t, o)
		r.client.Transport = &http.Transport{DialContext: n.DialFrom("127.0.0.1"), DisableKeepAlives: true} // a local caller
		for host, address := range map[string]string{"127.0.0.1": "127.0.0.1:", "::1": "[::1]:"} {
			n.SetCut("10.0.0.1", host, true)
			time.Sleep(keepXDS)
			r.want("/readyz?verbose", http.StatusServiceUnavailable, "[-]xds failed: no result within 3s: connect as an agent: dial tcp "+address)
			n.SetCut("10.0.0.1", host, false)
			time.Sleep(keepXDS)
			r.want("/readyz", http.StatusOK, "ok")
		}
	})
}

// A control plane that is about to end is unready at once, and keeps serving for a while.
func TestDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := local(t)
		o.ShutdownDelay = 8 * time.Second
		r := startPlane(t, o)
		r.want("/healthz", http.StatusOK, "ok")
		began := time.Now()
		r.stop()
		time.Sleep(keepDraining)
		r.want("/readyz", http.StatusServiceUnavailable, "[-]draining failed: ")
		r.want("/healthz", http.StatusServiceUnavailable, "[-]draining failed: the control plane is stopping")
		r.want("/readyz?exclude=draining", http.StatusOK, "ok")
		r.want("/readyz/xds", http.StatusOK, "ok")
		r.want("/livez", http.StatusOK, "ok")
		if err := <-r.ended; err != nil {
			t.Errorf("Run() = %v", err)
		}
		if took := time.Since(began); took != o.ShutdownDelay {
			t.Errorf("it ended after %s, want %s", took, o.ShutdownDelay)
		}
	})
}

// scanned is how long the health pages may take to show a change in the directory of files.
const scanned = 12 * time.Second

// storeRead waits until the store is read. A control plane is ready before that, too.
func (r *running) storeRead() {
	r.t.Helper()
	time.Sleep(scanned)
	r.want("/readyz?verbose", http.StatusOK, "\n[+]store ok\n")
}

// runs returns how often a check of readyz has run and passed.
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

// A thousand requests run each check only once while its result is cached.
func TestManyProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startPlane(t, local(t))
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
					time.Sleep(50 * time.Millisecond)
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
	})
}

// A CA whose file is removed is still used, but the next start would create another one. A warning says so until the
// file is restored.
func TestRemovedCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := local(t)
		writeMesh(t, &o, strictMesh)
		r := startPlane(t, o)
		file := filepath.Join(o.StateDir, "meshes", "default", "ca.json")
		r.want("/readyz?verbose", http.StatusOK, "\n[+]ca-files ok\n")
		if err := os.Rename(file, file+".bak"); err != nil {
			t.Fatal(err)
		}
		await(t, "the warning", func() bool {
			code, body := r.get("/readyz?verbose")
			return code == http.StatusOK && strings.Contains(body, "[!]ca-files warning: meshes/default/ca.json was removed, the CA in memory remains in use")
		})
		if err := os.Rename(file+".bak", file); err != nil {
			t.Fatal(err)
		}
		await(t, "the end of the warning", func() bool { _, body := r.get("/readyz?verbose"); return strings.Contains(body, "\n[+]ca-files ok\n") })
	})
}
