package filelock

import (
	"fmt"
	"os"
	"path/filepath"
)

// CheckPrivate returns an error if others than its owner may enter a directory for secrets. lock is the name of the file by which a program
// claims it. The directory may be one of the system, such as /etc or /mnt: only one that was claimed before is to get another mode.
func CheckPrivate(directory, lock string) error {
	info, err := os.Stat(directory)
	if err != nil {
		return err //nolint:wrapcheck // it names the directory
	}
	mode := info.Mode().Perm()
	if mode&0o077 == 0 {
		return nil
	}
	if claimed, err := os.Lstat(filepath.Join(directory, lock)); err == nil && claimed.Mode().IsRegular() {
		return fmt.Errorf("others may enter it (mode %04o): must have mode 0700, with which it was made", mode)
	}
	return fmt.Errorf("others may enter it (mode %04o): must be a directory of its own: choose a path that does not exist yet, or an empty directory with mode 0700", mode)
}
