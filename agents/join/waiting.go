package join

import (
	"maps"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	// maxWaiting limits how many waiting proxies are remembered.
	maxWaiting = 1000
	// waitsFor is how long a proxy counts as waiting after its last try: agents try at least every 10 s to join, and every
	// 30 s to renew.
	waitsFor = time.Minute
	// duplicateFor is waitsFor of a rejected duplicate agent: it retries within 10 s, and a try takes up to 13 s.
	duplicateFor = 25 * time.Second
	// lastsFrom is how long a new pod may have to wait, until replicas have read it. Who waits for longer waits for something else.
	lastsFrom = 30 * time.Second
)

// waiting has the proxies whose agents try to join with a valid token, and cannot.
type waiting struct {
	mu      sync.Mutex
	proxies map[mesh.ID]Wait
}

// Wait is that of one proxy.
type Wait struct {
	Since  time.Time // first try
	Reason string    // of the last refusal
	last   time.Time
	lasts  bool // it was told that it waits for longer than lastsFrom, for this reason
	by     refused
}

// refused is a rejected process.
type refused struct {
	process string // as the process reports it
	// duplicate: another process has the session, so a success of that process does not end this rejection.
	duplicate bool
}

// add records another try. It returns whether that is news: the proxy has just begun to wait, or waits for
// another reason now; and whether it has just become clear that it lasts. Beyond maxWaiting, proxies are not recorded.
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

// remove removes a proxy whose process has joined, unless another process was rejected as its duplicate. It reports whether the proxy was waiting.
func (w *waiting) remove(id mesh.ID, process string) bool {
	return w.removeIf(id, func(one Wait) bool { return !one.by.duplicate || one.by.process == process })
}

// ended removes a proxy that has not tried again since its session ended, because the reason for its refusal is gone. It reports whether the proxy was
// waiting.
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

// forget removes proxies that have stopped trying, and returns them.
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
