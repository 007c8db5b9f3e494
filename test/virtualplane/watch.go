package virtualplane

import (
	"errors"

	"github.com/fsnotify/fsnotify"
)

// NoWatcher is a store.DirOptions.Watcher that fails, so that a directory is only scanned periodically. A goroutine
// that waits for the kernel would stop the time of a bubble.
func NoWatcher() (*fsnotify.Watcher, error) { return nil, errors.ErrUnsupported }
