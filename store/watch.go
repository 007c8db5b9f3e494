package store

import (
	"errors"
	"fmt"
	"os"

	"github.com/fsnotify/fsnotify"
)

// watch reports changes in a directory. If it cannot, err says why and the channels are nil; then rescans find the
// changes.
type watch struct {
	path      string
	watcher   *fsnotify.Watcher
	events    <-chan fsnotify.Event
	errors    <-chan error
	err       error
	directory os.FileInfo // the one being watched; another one may replace it at its path
}

func newWatch(path string, newWatcher func() (*fsnotify.Watcher, error)) *watch {
	watcher, err := newWatcher()
	if err != nil {
		return &watch{err: fmt.Errorf("watch %s: %w", path, err)}
	}
	w := &watch{path: path, watcher: watcher, events: watcher.Events, errors: watcher.Errors}
	w.renew()
	return w
}

// renew watches the directory currently at the path.
func (w *watch) renew() {
	if w.watcher == nil {
		return
	}
	info, err := os.Stat(w.path)
	if err == nil && w.directory != nil && os.SameFile(info, w.directory) {
		return
	}
	if w.directory != nil {
		if err := w.watcher.Remove(w.path); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
			w.err = fmt.Errorf("watch %s: %w", w.path, err)
		}
		w.directory = nil
	}
	if err == nil {
		if err = w.watcher.Add(w.path); err == nil {
			w.directory = info
		}
	}
	w.err = err
}

func (w *watch) close() {
	if w.watcher != nil {
		_ = w.watcher.Close() // Close waits for the goroutine; its error has no effect
	}
}
