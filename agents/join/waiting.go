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
}

// add records another try. It returns whether that is news: the proxy has just begun to wait, or waits for
// another reason now; and whether it has just become clear that it lasts. Beyond maxWaiting, proxies are not recorded.
func (w *waiting) add(id mesh.ID, reason string, now time.Time) (news, lasts, recorded bool) {
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
	one.last, one.Reason = now, reason
	w.proxies[id] = one
	return news, lasts, true
}

// remove returns whether the proxy was there.
func (w *waiting) remove(id mesh.ID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, known := w.proxies[id]
	delete(w.proxies, id)
	return known
}

// forget removes proxies that have stopped trying, and returns them.
func (w *waiting) forget(now time.Time) []mesh.ID {
	w.mu.Lock()
	defer w.mu.Unlock()
	var gone []mesh.ID
	for id, one := range w.proxies {
		if now.Sub(one.last) >= waitsFor {
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
