package warnings

import (
	"bytes"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/controller/source"
	"github.com/sonde-mesh/sonde/controller/watch"
)

func TestPodChanged(t *testing.T) {
	now, before := time.Now(), time.Now().Add(-time.Hour)
	warned := &source.Pod{UID: "1", Created: now, Warnings: "a warning"}
	tests := map[string]struct {
		before, now *source.Pod
		want        bool
	}{
		"it comes":                  {nil, warned, true},
		"it changes":                {&source.Pod{UID: "1", Created: now}, warned, false},
		"it goes":                   {warned, nil, false},
		"the next one of its name":  {&source.Pod{UID: "0", Created: before, Warnings: "a warning"}, warned, true},
		"without a warning":         {nil, &source.Pod{UID: "1", Created: now}, false},
		"it was there at the start": {nil, &source.Pod{UID: "1", Created: before, Warnings: "a warning"}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := &Warnings{pods: make(chan pod, maxWaiting), log: slog.New(slog.DiscardHandler)}
			w.PodChanged(watch.Key{Namespace: "shop", Name: "web"}, tc.before, tc.now)
			if got := len(w.pods) == 1; got != tc.want {
				t.Errorf("reported: %t", got)
			}
		})
	}
}

// Too many pods block nothing: the oldest are dropped, and the leader reports it.
func TestTooManyPods(t *testing.T) {
	for _, leads := range []bool{false, true} {
		var log bytes.Buffer
		w := &Warnings{pods: make(chan pod, 2), log: slog.New(slog.NewTextHandler(&log, nil))}
		w.leads.Store(leads)
		for i := range 3 {
			w.PodChanged(watch.Key{Name: strconv.Itoa(i)}, nil, &source.Pod{Created: time.Now(), Warnings: "a warning"})
		}
		if first := <-w.pods; first.key.Name != "1" || len(w.pods) != 1 {
			t.Errorf("the oldest waiting pod is %s, and %d others wait", first.key.Name, len(w.pods))
		}
		if strings.Contains(log.String(), "dropping the injection warnings") != leads {
			t.Errorf("leads %t, log %q", leads, log.String())
		}
	}
}
