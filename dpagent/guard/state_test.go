package guard

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// now is the guard's time: the guard reads no clock between events.
var now = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// noFile is the file descriptor of connections and of an ended worker. Answering such a connection fails, which closes
// it.
const noFile = -1

// newGuard returns a guard with two probes and a hook, and with a worker that accepts all requests.
func newGuard() *guard {
	g := &guard{log: newLogger(), now: now, table: table{limits: map[string]*wire.Limit{}}, buffer: make([]byte, wire.MaxMessage+maxAddress)}
	g.initConns()
	for _, l := range []wire.Limit{{ID: "one", Timeout: time.Second}, {ID: "nine", Timeout: 9 * time.Second}, {ID: "hook", Hook: true}} {
		g.add(l)
	}
	g.worker.channel, g.worker.ready = noFile, true
	return g
}

// connect adds a connection of a client, for a probe unless id is "".
func (g *guard) connect(client byte, id string, state state, change ...func(*conn)) *conn {
	c := &conn{id: g.newID(), fd: noFile, port: &port{}, state: state, asked: g.now, remote: remote{size: net4, ip: [16]byte{10, 0, 0, client}}}
	c.limit = g.limits[id]
	for _, f := range change {
		f(c)
	}
	g.all[c.id] = c
	g.setDeadline(c)
	return c
}

// open returns the IDs of the open connections, in order.
func (g *guard) open() (ids []uint32) {
	for id := range g.all {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func asked(before time.Duration) func(*conn) {
	return func(c *conn) { c.asked = c.asked.Add(-before) }
}

// TestShed checks that in a flood from one client only this client loses a connection.
func TestShed(t *testing.T) {
	const kubelet, attacker = 1, 2
	tests := map[string]struct {
		connect func(g *guard) (loses *conn)
	}{
		"most connections": {func(g *guard) *conn {
			g.connect(kubelet, "one", queued, asked(time.Minute))
			oldest := g.connect(attacker, "", reading, asked(time.Second))
			g.connect(attacker, "", reading)
			return oldest
		}},
		"no request yet, of a client": {func(g *guard) *conn {
			g.connect(attacker, "one", queued, asked(time.Minute))
			g.connect(attacker, "one", assigned, asked(time.Hour))
			g.connect(attacker, "", reading)
			g.connect(attacker, "", reading)
			first := g.connect(attacker, "", reading, asked(time.Second))
			return first
		}},
		"as many, no request yet": {func(g *guard) *conn {
			g.connect(kubelet, "one", queued, asked(time.Hour))
			return g.connect(attacker, "", reading)
		}},
		"as many, the oldest": {func(g *guard) *conn {
			g.connect(kubelet, "one", queued)
			return g.connect(attacker, "one", queued, asked(time.Second))
		}},
		"hooks are no flood": {func(g *guard) *conn {
			g.connect(attacker, "hook", queued, asked(time.Hour))
			g.connect(attacker, "hook", assigned, asked(time.Hour))
			return g.connect(kubelet, "one", queued)
		}},
		"a network of IPv6": {func(g *guard) *conn {
			from := func(host byte) func(*conn) {
				return func(c *conn) { c.remote = remote{size: net6, ip: [16]byte{0: 0x20, 15: host}} }
			}
			g.connect(kubelet, "one", queued, asked(time.Minute))
			oldest := g.connect(0, "one", queued, from(1), asked(time.Second))
			g.connect(0, "one", queued, from(2))
			return oldest
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := newGuard()
			loses := tc.connect(g)
			before := len(g.all)
			if !g.shed() || g.all[loses.id] != nil || len(g.all) != before-1 {
				t.Errorf("connections %v of %d remain, want all but %d", g.open(), before, loses.id)
			}
		})
	}
	if g := newGuard(); g.connect(1, "hook", assigned) != nil && g.shed() {
		t.Error("a hook was shed")
	}
}

// TestExpire lets time pass without a worker, and with a worker that does not answer.
func TestExpire(t *testing.T) {
	tests := map[string]struct {
		id    string
		state state
		after time.Duration // 0: never
	}{
		"no request":                    {"", reading, time.Second},
		"waits for a worker":            {"nine", queued, 9 * time.Second},
		"a worker has it":               {"nine", assigned, 9*time.Second + verdictGrace},
		"no probe, waits for a worker":  {"", queued, time.Second},
		"no probe, a worker has it":     {"", assigned, 9*time.Second + verdictGrace},
		"a hook":                        {"hook", assigned, 0},
		"a hook that waits for workers": {"hook", queued, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := newGuard()
			g.connect(1, tc.id, tc.state)
			if tc.after == 0 {
				g.now = now.Add(24 * time.Hour)
				if g.runTimers(); !g.nextDeadline.IsZero() || len(g.all) != 1 {
					t.Errorf("the next deadline is %s, %d are open", g.nextDeadline, len(g.all))
				}
				return
			}
			if g.nextDeadline != now.Add(tc.after) {
				t.Errorf("the next deadline is after %s, want %s", g.nextDeadline.Sub(now), tc.after)
			}
			g.now = now.Add(tc.after - 1)
			if g.runTimers(); len(g.all) != 1 {
				t.Error("the request was answered too early")
			}
			g.now = now.Add(tc.after)
			if g.runTimers(); len(g.all) != 0 {
				t.Error("the request was not answered in time")
			}
		})
	}
}

// TestReclaim ends a worker.
func TestReclaim(t *testing.T) {
	g := newGuard()
	answered := []*conn{
		g.connect(1, "hook", assigned, func(c *conn) { c.begun = true }),
		g.connect(1, "one", assigned, func(c *conn) { c.answered = true }),
		g.connect(1, "one", assigned, func(c *conn) { c.attempts = maxAttempts }),
	}
	second := g.connect(1, "one", assigned, asked(time.Second))
	first := g.connect(1, "hook", assigned, asked(time.Minute))
	waiting := g.connect(1, "one", queued)
	g.queue = []*conn{waiting}
	kept, errored := g.reclaimRequests()
	if kept != 2 || errored != len(answered) {
		t.Errorf("%d requests are kept and %d answered, want 2 and %d", kept, errored, len(answered))
	}
	if diff := cmp.Diff([]uint32{second.id, first.id, waiting.id}, g.open()); diff != "" {
		t.Errorf("open connections (-want +got):\n%s", diff)
	}
	if !slices.Equal(g.queue, []*conn{first, second, waiting}) {
		t.Error("the queue is not in the order of arrival")
	}
	if second.state != queued || second.deadline != now {
		t.Errorf("a request of a second ago waits until %s", second.deadline)
	}

	g.dispatch() // to the next worker
	for _, c := range []*conn{first, second, waiting} {
		if c.state != assigned || c.attempts != 1 || c.inQueue {
			t.Errorf("%d has state %d after %d attempts", c.id, c.state, c.attempts)
		}
	}
	if len(g.queue) != 0 {
		t.Errorf("%d requests remain in the queue", len(g.queue))
	}
}

// TestDispatchWaits has no worker that can accept requests.
func TestDispatchWaits(t *testing.T) {
	for name, change := range map[string]func(*worker){
		"not ready": func(w *worker) { w.ready = false }, "no room in its socket": func(w *worker) { w.blocked = true },
	} {
		g := newGuard()
		change(&g.worker)
		c := g.connect(1, "one", reading)
		if g.enqueue(c); c.state != queued || len(g.queue) != 1 {
			t.Errorf("%s: state %d, %d in the queue", name, c.state, len(g.queue))
		}
	}
}

// TestFarewell ends the last worker: the guard still answers retries for a moment.
func TestFarewell(t *testing.T) {
	g := newGuard()
	g.worker = worker{channel: noFile}
	probe, hook := g.connect(1, "one", assigned), g.connect(1, "hook", queued)
	g.leave(3)
	if g.done || g.all[probe.id] != nil || g.all[hook.id] != nil {
		t.Errorf("done: %t, connections %v are open", g.done, g.open())
	}
	g.now = now.Add(farewell - 1)
	g.runTimers()
	if again := g.connect(1, "one", reading); !g.done {
		if g.enqueue(again); g.all[again.id] != nil {
			t.Error("a retry waits")
		}
	}
	g.now = now.Add(farewell)
	if g.runTimers(); !g.done || g.exitCode != 3 {
		t.Errorf("done: %t, exit code %d, want 3", g.done, g.exitCode)
	}
	idle := newGuard()
	if idle.leave(0); !idle.done {
		t.Error("an unused guard does not exit at once")
	}
}

func TestSignalWhileNoWorkerRuns(t *testing.T) {
	g := newGuard()
	g.worker = worker{channel: noFile, startAt: now.Add(minDelay)}
	g.onSignal(syscall.SIGTERM)
	if !g.done || g.exitCode != 0 {
		t.Errorf("done: %t, exit code %d, want 0", g.done, g.exitCode)
	}
}
