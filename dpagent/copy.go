package dpagent

import (
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"

	"github.com/sonde-mesh/sonde/internal/replacefile"
)

// copyProgram copies a program into a directory and atomically replaces a file of the same name: a process that runs it
// meanwhile gets the old or the new program. An equal copy is kept, so that a restarted agent needs no disk space.
func copyProgram(program, directory string) error {
	copied := filepath.Join(directory, filepath.Base(program))
	switch same, err := sameFiles(program, copied); {
	case err != nil:
		return err
	case same:
		return nil
	}
	from, err := os.Open(program)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()                                // it was only read
	return replacefile.Write(copied, 0o755, func(to io.Writer) error { // any user of a container may run it
		_, err := io.Copy(to, from)
		return err
	})
}

// sameFiles reports whether a program and its copy are equal. A copy that cannot be read or run counts as different.
func sameFiles(program, copied string) (bool, error) {
	want, err := digest(program)
	if err != nil {
		return false, err
	}
	info, err := os.Stat(copied)
	if err != nil || info.Mode() != 0o755 {
		return false, nil //nolint:nilerr // it is written again
	}
	got, err := digest(copied)
	return err == nil && got == want, nil
}

func digest(path string) (sum [sha256.Size]byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return sum, err
	}
	defer func() { _ = file.Close() }() // it was only read
	hash := sha256.New()
	_, err = io.Copy(hash, file)
	return [sha256.Size]byte(hash.Sum(nil)), err
}
