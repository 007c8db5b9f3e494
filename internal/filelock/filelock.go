// Package filelock claims a directory for one process, by a lock on a file in it.
package filelock

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// ErrHeld means that another process holds the lock.
var ErrHeld = errors.New("the lock is held")

// Lock locks a file, without waiting. The lock lasts until the file is closed or the process ends in any way. The file
// must be open for writing, which NFS requires. The error is ErrHeld if another process, or another open file of this
// process, has the lock.
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

// LockDirectory is Lock for an open directory. Unlike a file in it, the directory cannot be removed and recreated for a
// second holder. It returns no error on a file system that cannot lock directories, such as NFS; then only the lock
// file protects.
func LockDirectory(directory *os.File) error {
	err := Lock(directory)
	for _, unsupported := range []error{syscall.EBADF, syscall.ENOTSUP, syscall.ENOLCK, syscall.EINVAL} {
		if errors.Is(err, unsupported) {
			return nil
		}
	}
	return err
}
