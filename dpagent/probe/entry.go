package probe

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Limits on how often a probe is checked. The kubelet probes three times within milliseconds after Errored, and once
// more when a container becomes not ready.
const (
	checksPerSecond = 10
	checksBurst     = 4
)

// limitOf returns how often a probe is checked. A command costs more than a request, so it runs about as often as the
// kubelet would run it. A check after a restart waits at most a quarter of maxExecPeriod.
func limitOf(p mesh.Probe) rate.Limit {
	if p.Exec == nil {
		return checksPerSecond
	}
	period := min(max(time.Duration(p.PeriodSeconds)*time.Second, time.Second), maxExecPeriod)
	return rate.Every(period / checksBurst)
}

const maxExecPeriod = 10 * time.Second

// entry is one probe or hook of the table.
type entry struct {
	probe   mesh.Probe
	path    string // pathKey of the virtual path
	h       *Handler
	prober  prober
	timeout time.Duration
	metrics entryMetrics

	mu    sync.Mutex
	lanes map[rules]*lane // by the rules of callers
}

// lane is the state that callers with the same rules share. An entry has one lane for each set of rules among its
// callers' kubelet versions.
type lane struct {
	limiter *rate.Limiter
	current *check   // the waiting or running check, or nil
	last    *verdict // verdict of the last check, nil before the first
	asked   regularity
	held    heldBack // the last held failure of a guarded probe
}

// lane returns the lane of callers with these rules. The caller holds mu.
func (e *entry) lane(r rules) *lane {
	l := e.lanes[r]
	if l == nil {
		l = &lane{limiter: rate.NewLimiter(limitOf(e.probe), checksBurst)}
		e.lanes[r] = l
	}
	return l
}

// prober makes the checks of one probe.
type prober interface {
	probe(ctx context.Context, by asker) result
}

func newEntry(p mesh.Probe, h *Handler) *entry {
	e := &entry{
		probe: p, path: pathKey(p.VirtualPath()), h: h, metrics: h.metrics.of(p),
		timeout: time.Duration(p.TimeoutSeconds) * time.Second, lanes: map[rules]*lane{},
	}
	e.prober = newProber(p, h.o.PodIP, e.timeout, h.o.Dial, h.clients)
	return e
}

// newProber returns the prober of a probe at an address.
func newProber(p mesh.Probe, address netip.Addr, timeout time.Duration, dial Dial, c clients) prober {
	return mesh.MatchHandler(p,
		func(h *mesh.HTTPGetProbe) prober {
			if p.Type.IsHook() {
				return newHookProber(c.hook, address, h)
			}
			return newHTTPProber(c, address, h, timeout)
		},
		func(h *mesh.TCPSocketProbe) prober { return newTCPProber(address, h, timeout, dial) },
		func(h *mesh.GRPCProbe) prober { return newGRPCProber(address, h, timeout, dial) },
		func(*mesh.ExecProbe) prober { return newExecProber(p, timeout, dial) },
	)
}

// check is one check. All requests that arrive before it ends share it.
type check struct {
	done    chan struct{}
	cancel  context.CancelFunc
	waiters int    // number of waiting requests; guarded by entry.mu
	running bool   // false while it waits for the rate limit; guarded by entry.mu
	result  result // valid after done
}

// ask returns the result of a check that ends after r has arrived.
func (e *entry) ask(r *http.Request) result {
	by := askerOf(r, e.probe)
	if held, is := e.heldAnswer(by.rules); is {
		return held
	}
	c := e.joinCheck(r.Context(), by)
	select {
	case <-c.done:
		return c.result
	case <-r.Context().Done(): // the caller has disconnected, or the agent shuts down
		e.leaveCheck(c, by.rules)
		return ending
	case <-evicted(r.Context()):
		e.leaveCheck(c, by.rules)
		e.metrics.count(errored)
		return overloaded
	}
}

// Results for callers that do not get the result of their check.
var (
	ending     = result{class: AgentFault, reason: "the agent is shutting down"}
	overloaded = result{class: AgentFault, reason: "the agent is overloaded"}
)

// joinCheck adds a waiter to the current check, or starts one.
func (e *entry) joinCheck(ctx context.Context, by asker) *check {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.lane(by.rules)
	c := l.current
	if c == nil {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // other callers may join
		c = &check{done: make(chan struct{}), cancel: cancel}
		l.current = c
		e.h.running.Go(func() { e.run(ctx, l, c, by) })
	}
	c.waiters++
	return c
}

// leaveCheck removes a waiter, and cancels a running check that has no waiters. A check that waits for the rate limit
// stays for the next caller, so that callers that come and go do not use up the rate of others.
func (e *entry) leaveCheck(c *check, r rules) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.waiters--; c.waiters == 0 && c.running {
		c.cancel()
		e.lane(r).clear(c)
	}
}

// clear makes the next caller start a new check. The caller holds the entry's mu.
func (l *lane) clear(c *check) {
	if l.current == c {
		l.current = nil
	}
}

func (e *entry) run(ctx context.Context, l *lane, c *check, by asker) {
	defer c.cancel()
	defer close(c.done)
	if l.limiter.Wait(ctx) != nil || !e.startRunning(l, c) {
		return
	}
	var took time.Duration
	c.result, took = checkOnce(e.timeout, func() result { return e.prober.probe(ctx, by) })
	if ctx.Err() == nil {
		counts := e.counts(by.rules)
		e.observe(ctx, by.rules, c.result, took, counts)
		c.result = e.guard(by.rules, c.result, counts)
		if counts {
			e.h.o.Checked(e.probe, c.result.outcome(took))
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	l.clear(c)
}

// checkOnce makes one check, and returns how long it took.
func checkOnce(timeout time.Duration, check func() result) (result, time.Duration) {
	began, late := time.Now(), watchLag(timeout)
	r := check()
	took := time.Since(began)
	return r.unlessLate(took, timeout, late.stop()), took
}

// startRunning marks a check as running. It returns false if all waiters have left.
func (e *entry) startRunning(l *lane, c *check) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.running = c.waiters > 0; !c.running {
		l.clear(c)
	}
	return c.running
}

// observe measures a check, logs the verdict if it differs from the previous one, and reports a result that counts.
func (e *entry) observe(ctx context.Context, by rules, r result, took time.Duration, counts bool) {
	e.metrics.observe(r.verdict, took)
	if r.verdict != success && counts {
		e.tell(r)
	}
	e.mu.Lock()
	l := e.lane(by)
	changed := l.last == nil || *l.last != r.verdict
	l.last = &r.verdict
	e.mu.Unlock()
	if !changed {
		return
	}
	if r.verdict == success {
		e.logger(r.verdict).InfoContext(ctx, "probe verdict")
	} else {
		e.logger(r.verdict).WarnContext(ctx, "probe verdict", "err", r.reason)
	}
}

// tell reports a check that did not succeed.
func (e *entry) tell(r result) {
	e.h.o.Failed(Failure{
		Container: e.probe.Container, Probe: probeName(e.probe), Verdict: r.verdict.String(), Class: r.class,
		Reason: r.reason,
	})
}

// logger returns a logger with the attributes of a verdict of this entry.
func (e *entry) logger(v verdict) *slog.Logger {
	return e.h.o.Logger.With("container", e.probe.Container, "probe", probeName(e.probe), "port", e.probe.Port(),
		"verdict", v.String())
}
