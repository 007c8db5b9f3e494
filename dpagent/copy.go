package dpagent

import (
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"

	"github.com/sonde-mesh/sonde/internal/replacefile"
)

// copyProgram copies a program into a directory, in place of one that has its name there. A process that starts it
// meanwhile gets the one before, or this one. An equal copy stays, so that a restarted agent needs no space.
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
	return replacefile.Write(copied, 0o755, func(to io.Writer) error { // each user of a container runs it
		_, err := io.Copy(to, from)
		return err
	})
}

// sameFiles reports whether a program and its copy are equal. A copy that cannot be read or run is another one.
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
