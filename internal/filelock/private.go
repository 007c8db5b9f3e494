package filelock

import (
	"fmt"
	"os"
	"path/filepath"
)

// CheckPrivate returns an error if users other than the owner may enter a directory for secrets. lock is the name of
// the file by which a program claims the directory. The error suggests a new mode only for a directory that was claimed
// before, since any other may be a system directory such as /etc or /mnt.
func CheckPrivate(directory, lock string) error {
	info, err := os.Stat(directory)
	if err != nil {
		return err //nolint:wrapcheck // the error names the directory
	}
	mode := info.Mode().Perm()
	if mode&0o077 == 0 {
		return nil
	}
	if claimed, err := os.Lstat(filepath.Join(directory, lock)); err == nil && claimed.Mode().IsRegular() {
		return fmt.Errorf("other users may enter it (mode %04o): must have mode 0700, as when created", mode)
	}
	return fmt.Errorf("other users may enter it (mode %04o): must be a dedicated directory: choose a path that does not exist yet, or an empty directory with mode 0700", mode)
}
