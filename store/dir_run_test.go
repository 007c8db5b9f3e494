package store

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
)

// run runs the Dir of f in a bubble until the test ends. An event that the test writes into the channel is reported to
// it.
func (f *fixture) run() chan<- fsnotify.Event {
	f.t.Helper()
	events := make(chan fsnotify.Event)
	f.dir.o.Registerer = prometheus.NewRegistry()
	f.dir.watch = func() *watch { return &watch{events: events} }
	ctx, stop := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	go func() { done <- f.dir.Run(ctx) }()
	f.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			f.t.Errorf("Run() = %v", err)
		}
	})
	synctest.Wait()
	return events
}

// after returns the calls within d.
func (f *fixture) after(d time.Duration) []string {
	time.Sleep(d)
	synctest.Wait()
	return f.calls.take()
}

// TestDirRunReadsWhatItIsToldOf writes files with and without an event. test/real/store has real events of a kernel.
func TestDirRunReadsWhatItIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.write("a.yaml", service("a"))
		events := f.run()
		f.expect("before the file has settled", f.after(settle-1))
		f.expect("at the start", f.after(1), "set Service default a", "synced")

		f.write("b.yaml", service("b"))
		for range 100 { // a burst
			events <- fsnotify.Event{}
		}
		f.expect("before the file has settled", f.after(settle/10+settle-1))
		f.expect("told of a file", f.after(1), "set Service default b")

		f.remove("b.yaml")
		f.expect("before a scan", f.after(defaultRescan-1))
		f.expect("not told", f.after(1+settle), "delete Service default b")
		close(events) // the system ends the watch
		f.remove("a.yaml")
		f.expect("without a watch", f.after(defaultRescan+settle), "delete Service default a")
	})
}

func TestDirRunNeedsDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{file: "is not a directory", file + ".none": "no such file"} {
		err := NewDir(DirOptions{Path: path, Builder: &calls{}}).Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run() on %s = %v, want %q", path, err, want)
		}
	}
}
