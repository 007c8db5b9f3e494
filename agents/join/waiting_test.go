package join

import (
	"fmt"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestWaiting(t *testing.T) {
	start := time.Unix(1e9, 0)
	h := &waiting{proxies: map[mesh.ID]Wait{}}
	add := func(id mesh.ID, reason string, at time.Duration, wantNews, wantLasts, wantRecorded bool) {
		t.Helper()
		if news, lasts, recorded := h.add(id, refused{}, reason, start.Add(at)); news != wantNews || lasts != wantLasts || recorded != wantRecorded {
			t.Errorf("add(%s, %s) after %s = %v, %v, %v, want %v, %v, %v", id, reason, at, news, lasts, recorded, wantNews, wantLasts, wantRecorded)
		}
	}
	add("default/a", "no Dataplane", 0, true, false, true)
	add("default/a", "no Dataplane", 29*time.Second, false, false, true)
	add("default/a", "no Dataplane", 30*time.Second, false, true, true)
	add("default/a", "no Dataplane", 50*time.Second, false, false, true)
	add("default/a", "other workload", 55*time.Second, true, true, true)
	h.forget(start.Add(100 * time.Second))
	if got := h.all()["default/a"]; !got.Since.Equal(start) || got.Reason != "other workload" {
		t.Errorf("it waits since %s for %q, want the time of the first try, and the last reason", got.Since, got.Reason)
	}
	for i := range maxWaiting {
		h.add(fmt.Sprintf("default/%d", i), refused{}, "", start)
	}
	add("default/b", "", 0, true, false, false)
	add("default/a", "other workload", 110*time.Second, false, false, true)
	h.forget(start.Add(55*time.Second + waitsFor))
	if n := len(h.all()); n != 1 {
		t.Errorf("%d wait, want only the proxy that has tried within %s", n, waitsFor)
	}
	add("default/b", "", 0, true, false, true)
	h.remove("default/b", "")
	add("default/b", "", 0, true, false, true)
}

// TestRefusalGoesWithItsProcess rejects process b 10 s after the start.
func TestRefusalGoesWithItsProcess(t *testing.T) {
	const id = "default/a"
	start := time.Unix(1e9, 0)
	tried := start.Add(10 * time.Second)
	for name, tc := range map[string]struct {
		duplicate bool
		then      func(*waiting)
		stays     bool
	}{
		"nothing happens":                               {true, func(*waiting) {}, true},
		"it tries no more":                              {true, func(w *waiting) { w.forget(tried.Add(duplicateFor)) }, false},
		"it may try again":                              {true, func(w *waiting) { w.forget(tried.Add(duplicateFor - 1)) }, true},
		"it gets the session":                           {true, func(w *waiting) { w.remove(id, "b") }, false},
		"the one that has the session joins":            {true, func(w *waiting) { w.remove(id, "a") }, true},
		"the session ends":                              {true, func(w *waiting) { w.ended(id, tried.Add(time.Second)) }, false},
		"another session had ended before":              {true, func(w *waiting) { w.ended(id, start) }, true},
		"for another reason, and another process joins": {false, func(w *waiting) { w.remove(id, "a") }, false},
		"for another reason, and tries seldom":          {false, func(w *waiting) { w.forget(tried.Add(duplicateFor)) }, true},
		"for another reason, and the session ends":      {false, func(w *waiting) { w.ended(id, tried.Add(time.Second)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := &waiting{proxies: map[mesh.ID]Wait{}}
			w.add(id, refused{"b", tc.duplicate}, "why", tried)
			tc.then(w)
			if _, waits := w.of(id); waits != tc.stays {
				t.Errorf("it waits: %t, want %t", waits, tc.stays)
			}
		})
	}
}
