package virtualplane

import (
	"errors"

	"github.com/fsnotify/fsnotify"
)

// NoWatcher is a store.DirOptions.Watcher: a directory is scanned from time to time alone. A goroutine that waits for the kernel would stop the
// time of a bubble.
func NoWatcher() (*fsnotify.Watcher, error) { return nil, errors.ErrUnsupported }
