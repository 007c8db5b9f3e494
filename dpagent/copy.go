package dpagent

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// copyProgram copies a program into a directory, in place of one that has its name there. A process that starts it
// meanwhile gets the one before, or this one.
func copyProgram(program, directory string) error {
	from, err := os.Open(program)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // it was only read
	copied := filepath.Join(directory, filepath.Base(program))
	to, err := os.OpenFile(copied+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Chmod(0o755), to.Close()); err != nil { // each user of a container runs it
		return err
	}
	return os.Rename(to.Name(), copied)
}
