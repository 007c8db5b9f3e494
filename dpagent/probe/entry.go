package probe

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Limits of how often a probe is checked. The kubelet asks three times within milliseconds after Errored, and once more
// when a container becomes not ready.
const (
	checksPerSecond = 10
	checksBurst     = 4
)

// entry is one probe or hook of the table.
type entry struct {
	probe   mesh.Probe
	path    string // pathKey of its virtual path
	h       *Handler
	prober  prober
	timeout time.Duration
	metrics entryMetrics
	limiter *rate.Limiter

	mu      sync.Mutex
	current *check   // the check that waits or runs, nil if there is none
	last    *verdict // verdict of the last check, nil before the first
	held    heldBack // the last failure of a guarded probe that was held back
}

// prober makes checks.
type prober interface {
	probe(ctx context.Context, userAgent string) result
}

func newEntry(p mesh.Probe, h *Handler) *entry {
	e := &entry{
		probe: p, path: pathKey(p.VirtualPath()), h: h, metrics: h.metrics.of(p),
		timeout: time.Duration(p.TimeoutSeconds) * time.Second, limiter: rate.NewLimiter(checksPerSecond, checksBurst),
	}
	e.prober = newProber(p, h.o.PodIP, e.timeout, h.o.Dial, h.clients)
	return e
}

// newProber returns what makes the checks of a probe at an address.
func newProber(p mesh.Probe, address netip.Addr, timeout time.Duration, dial Dial, c clients) prober {
	return mesh.MatchHandler(p,
		func(h *mesh.HTTPGetProbe) prober {
			if p.Type.IsHook() {
				return newHookProber(c.hook, address, h)
			}
			return newHTTPProber(c.probe, address, h, timeout)
		},
		func(h *mesh.TCPSocketProbe) prober { return newTCPProber(address, h, timeout, dial) },
		func(h *mesh.GRPCProbe) prober { return newGRPCProber(address, h, timeout, dial) },
	)
}

// check is one check, for all requests that arrive before it ends.
type check struct {
	done    chan struct{}
	cancel  context.CancelFunc
	waiters int    // requests that wait for it; guarded by entry.mu
	running bool   // it no longer waits for the rate limit; guarded by entry.mu
	result  result // valid after done
}

// ask returns the verdict of a check that ends after r has arrived.
func (e *entry) ask(r *http.Request) result {
	if held, is := e.heldAnswer(); is {
		return held
	}
	c := e.joinCheck(r)
	select {
	case <-c.done:
		return c.result
	case <-r.Context().Done(): // the caller has gone, or the agent ends
		e.leaveCheck(c)
		return ending
	case <-evicted(r.Context()):
		e.leaveCheck(c)
		e.metrics.count(errored)
		return overloaded
	}
}

// Results where the caller does not get the one of its check.
var (
	ending     = result{reason: "the agent ends"}
	overloaded = result{reason: "the agent is overloaded"}
)

// joinCheck adds a waiter to the current check, or starts one.
func (e *entry) joinCheck(r *http.Request) *check {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.current
	if c == nil {
		ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context())) // other callers may join
		c = &check{done: make(chan struct{}), cancel: cancel}
		e.current = c
		userAgent := e.userAgent(r)
		e.h.running.Go(func() { e.run(ctx, c, userAgent) })
	}
	c.waiters++
	return c
}

// leaveCheck removes a waiter, and cancels a running check without waiters. A check that waits for the rate limit stays for
// the next caller: otherwise callers that come and go would use up the rate of the others.
func (e *entry) leaveCheck(c *check) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.waiters--; c.waiters == 0 && c.running {
		c.cancel()
		e.clearCurrent(c)
	}
}

// clearCurrent makes the next caller start a new check. mu is held.
func (e *entry) clearCurrent(c *check) {
	if e.current == c {
		e.current = nil
	}
}

func (e *entry) run(ctx context.Context, c *check, userAgent string) {
	defer c.cancel()
	defer close(c.done)
	if e.limiter.Wait(ctx) != nil || !e.startRunning(c) {
		return
	}
	var took time.Duration
	c.result, took = checkOnce(e.timeout, func() result { return e.prober.probe(ctx, userAgent) })
	if ctx.Err() == nil {
		e.observe(ctx, c.result, took)
		c.result = e.guard(c.result)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.clearCurrent(c)
}

// checkOnce makes one check, and returns how long it took.
func checkOnce(timeout time.Duration, check func() result) (result, time.Duration) {
	began, late := time.Now(), watchLag(timeout)
	r := check()
	took := time.Since(began)
	return r.unlessLate(took, timeout, late.stop()), took
}

// startRunning marks a check as running. It returns false if it has no waiters any more.
func (e *entry) startRunning(c *check) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.running = c.waiters > 0; !c.running {
		e.clearCurrent(c)
	}
	return c.running
}

// observe counts a check, and logs a verdict that differs from the one before.
func (e *entry) observe(ctx context.Context, r result, took time.Duration) {
	e.metrics.observe(r.verdict, took)
	if r.verdict != success {
		e.tell(r)
	}
	e.mu.Lock()
	changed := e.last == nil || *e.last != r.verdict
	e.last = &r.verdict
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

// tell passes on that a check did not succeed.
func (e *entry) tell(r result) {
	e.h.o.Failed(Failure{
		Container: e.probe.Container, Probe: probeName(e.probe), Verdict: r.verdict.String(), Class: r.class, Reason: r.reason,
	})
}

// logger returns a logger with the attributes of a verdict of this entry.
func (e *entry) logger(v verdict) *slog.Logger {
	return e.h.o.Logger.With("container", e.probe.Container, "probe", probeName(e.probe), "port", e.probe.Port(), "verdict", v.String())
}

// Prefixes of the kubelet's user agents. No others are passed on.
const (
	probeAgent = "kube-probe/"
	hookAgent  = "kube-lifecycle/"
	// ownAgent is the user agent where the kubelet does not ask.
	ownAgent = probeAgent + "sonde"
)

// userAgent returns that of a request to the application.
func (e *entry) userAgent(r *http.Request) string {
	if e.probe.Type.IsHook() {
		return kubeletAgent(r, hookAgent+"sonde")
	}
	return kubeletAgent(r, ownAgent)
}

// kubeletAgent returns the caller's user agent if it is the kubelet's, else another with the kubelet's prefix, since applications may check
// that.
func kubeletAgent(r *http.Request, otherwise string) string {
	const longest = 64
	agent := r.UserAgent()
	if r.ProtoMajor == 2 { // the kubelet's gRPC library appends its own
		agent, _, _ = strings.Cut(agent, " ")
	}
	version, known := strings.CutPrefix(agent, probeAgent)
	if !known {
		version, known = strings.CutPrefix(agent, hookAgent)
	}
	odd := func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune(".+-_~", c)
	}
	if known && len(version) <= longest && !strings.ContainsFunc(version, odd) {
		return agent
	}
	return otherwise
}
