// Package filelock claims a directory for one process, by a lock on a file in it.
package filelock

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// ErrHeld says that another process holds the lock.
var ErrHeld = errors.New("the lock is held")

// Lock locks a file, without waiting. The lock lasts until the file is closed or the process ends, however it ends. The file
// must be open for writing, which NFS needs. The error is ErrHeld if another process, or another file of this one, has the
// lock.
func Lock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return ErrHeld
	case err != nil:
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}

// LockDirectory is Lock of an open directory: unlike a file in it, it cannot be removed and made again for a second holder. A file system that locks
// no directories, such as NFS, is no error: there a lock file holds alone.
func LockDirectory(directory *os.File) error {
	err := Lock(directory)
	for _, unsupported := range []error{syscall.EBADF, syscall.ENOTSUP, syscall.ENOLCK, syscall.EINVAL} {
		if errors.Is(err, unsupported) {
			return nil
		}
	}
	return err
}
