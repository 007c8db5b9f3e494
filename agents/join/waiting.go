package join

import (
	"maps"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	// maxWaiting bounds the recorded proxies.
	maxWaiting = 1000
	// waitsFor is how long a proxy counts as waiting after its last attempt. Agents retry a join within 10 s, a renewal
	// within 30 s.
	waitsFor = time.Minute
	// duplicateFor replaces waitsFor for a rejected duplicate agent, which retries within 10 s; an attempt takes up to
	// 13 s.
	duplicateFor = 25 * time.Second
	// lastsFrom is how long a new pod may have to wait until the replicas have read it from Kubernetes. A proxy that
	// waits longer has another problem.
	lastsFrom = 30 * time.Second
)

// waiting has the proxies whose agents have a valid token but fail to join.
type waiting struct {
	mu      sync.Mutex
	proxies map[mesh.ID]Wait
}

// Wait describes why and since when a proxy waits.
type Wait struct {
	Since  time.Time // first attempt
	Reason string    // of the last rejection
	last   time.Time
	lasts  bool // add has returned lasts for this reason
	by     refused
}

// refused is a rejected process.
type refused struct {
	process string // as the process reports it
	// duplicate says that another process has the session. So this rejection remains even if that process joins again.
	duplicate bool
}

// add records another attempt. news says that the proxy has just begun to wait, or waits for a new reason; lasts that
// it has just exceeded lastsFrom. add does not record proxies beyond maxWaiting.
func (w *waiting) add(id mesh.ID, by refused, reason string, now time.Time) (news, lasts, recorded bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one, known := w.proxies[id]
	if !known && len(w.proxies) >= maxWaiting {
		return true, false, false
	}
	news = !known || one.Reason != reason
	if !known {
		one.Since = now
	}
	if lasts = now.Sub(one.Since) >= lastsFrom && (news || !one.lasts); lasts {
		one.lasts = true
	}
	one.last, one.Reason, one.by = now, reason, by
	w.proxies[id] = one
	return news, lasts, true
}

// remove removes a proxy whose process has joined, unless another process was rejected as its duplicate. It reports
// whether the proxy was waiting.
func (w *waiting) remove(id mesh.ID, process string) bool {
	return w.removeIf(id, func(one Wait) bool { return !one.by.duplicate || one.by.process == process })
}

// ended removes a proxy whose last attempt was before its session ended, because that session was the reason for the
// rejection. It reports whether the proxy was waiting.
func (w *waiting) ended(id mesh.ID, at time.Time) bool {
	return w.removeIf(id, func(one Wait) bool { return !one.last.After(at) })
}

func (w *waiting) removeIf(id mesh.ID, is func(Wait) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	one, known := w.proxies[id]
	if !known || !is(one) {
		return false
	}
	delete(w.proxies, id)
	return true
}

// forget removes and returns the proxies that no longer retry.
func (w *waiting) forget(now time.Time) []mesh.ID {
	w.mu.Lock()
	defer w.mu.Unlock()
	var gone []mesh.ID
	for id, one := range w.proxies {
		after := waitsFor
		if one.by.duplicate {
			after = duplicateFor
		}
		if now.Sub(one.last) >= after {
			delete(w.proxies, id)
			gone = append(gone, id)
		}
	}
	return gone
}

func (w *waiting) of(id mesh.ID) (Wait, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one, waits := w.proxies[id]
	return one, waits
}

func (w *waiting) all() map[mesh.ID]Wait {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.proxies)
}
