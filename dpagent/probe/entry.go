package probe

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// A probe is checked at most so often, whoever asks. The kubelet asks thrice within milliseconds after Errored, and
// once more when a container turns not ready.
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
	metrics entryMetrics
	limiter *rate.Limiter

	mu      sync.Mutex
	current *check   // waiting or running, nil if none
	last    *verdict // of the last check, nil before the first
}

// prober makes one check.
type prober interface {
	probe(ctx context.Context, userAgent string) result
}

func newEntry(p mesh.Probe, h *Handler, m *metrics) *entry {
	e := &entry{
		probe: p, path: pathKey(p.VirtualPath()), h: h, metrics: m.of(p),
		limiter: rate.NewLimiter(checksPerSecond, checksBurst),
	}
	timeout := time.Duration(p.TimeoutSeconds) * time.Second
	switch {
	case p.TCPSocket != nil:
		e.prober = newTCPProber(h.o.PodIP, p.TCPSocket, timeout)
	case p.GRPC != nil:
		e.prober = newGRPCProber(h.o.PodIP, p.GRPC, timeout)
	case p.Type.IsHook():
		e.prober = newHookProber(h.clients.hook, h.o.PodIP, p.HTTPGet)
	default:
		e.prober = newHTTPProber(h.clients.probe, h.o.PodIP, p.HTTPGet, timeout)
	}
	return e
}

// check is made for all who came before it ended.
type check struct {
	done    chan struct{}
	cancel  context.CancelFunc
	waiters int    // guarded by the entry's mu
	running bool   // the same: it asks, and no longer waits for its turn
	result  result // valid after done
}

// serveProbe answers with the verdict of a check that has not ended when r came.
func (e *entry) serveProbe(w http.ResponseWriter, r *http.Request) {
	c := e.joinCheck(r)
	select {
	case <-c.done:
		c.result.write(w)
	case <-r.Context().Done(): // the caller has left, or the agent ends
		e.leaveCheck(c)
		result{reason: "the agent ends"}.write(w)
	case <-evicted(r.Context()):
		e.leaveCheck(c)
		e.metrics.count(errored)
		result{reason: "the agent is overloaded"}.write(w)
	}
}

// joinCheck returns the check that waits or runs, or starts one.
func (e *entry) joinCheck(r *http.Request) *check {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.current
	if c == nil {
		ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context())) // it is not the caller's alone
		c = &check{done: make(chan struct{}), cancel: cancel}
		e.current = c
		userAgent := e.userAgent(r)
		e.h.running.Go(func() { e.run(ctx, c, userAgent) })
	}
	c.waiters++
	return c
}

// leaveCheck ends a check that runs and that nobody waits for. One that waits for its turn stays, for whoever comes: there is
// never more than one, so that callers who come and go use up no turns of others.
func (e *entry) leaveCheck(c *check) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.waiters--; c.waiters == 0 && c.running {
		c.cancel()
		e.clearCurrent(c)
	}
}

// clearCurrent makes the next caller start a check. It needs mu.
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
	began := time.Now()
	c.result = e.prober.probe(ctx, userAgent)
	if ctx.Err() == nil {
		e.observe(ctx, c.result, time.Since(began))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.clearCurrent(c)
}

// startRunning says whether anybody still waits for the check.
func (e *entry) startRunning(c *check) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.running = c.waiters > 0; !c.running {
		e.clearCurrent(c)
	}
	return c.running
}

// observe counts a check and logs a verdict that differs from the last one.
func (e *entry) observe(ctx context.Context, r result, took time.Duration) {
	e.metrics.count(r.verdict)
	e.metrics.duration.Observe(took.Seconds())
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

// logger for what becomes of a check.
func (e *entry) logger(v verdict) *slog.Logger {
	return e.h.o.Logger.With("container", e.probe.Container, "probe", probeName(e.probe), "port", e.probe.Port(), "verdict", v.String())
}

// User agents of the kubelet. Only they are passed on.
const (
	probeAgent = "kube-probe/"
	hookAgent  = "kube-lifecycle/"
)

// userAgent returns the caller's where it is the kubelet's, else our own, which applications take for the kubelet too.
func (e *entry) userAgent(r *http.Request) string {
	const longest = 64
	agent := r.UserAgent()
	version, known := strings.CutPrefix(agent, probeAgent)
	if !known {
		version, known = strings.CutPrefix(agent, hookAgent)
	}
	odd := func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune(".+-_~", c)
	}
	switch {
	case known && len(version) <= longest && !strings.ContainsFunc(version, odd):
		return agent
	case e.probe.Type.IsHook():
		return hookAgent + "sonde"
	}
	return probeAgent + "sonde"
}
