// Package replacefile replaces files as a whole.
package replacefile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces a file by one with this mode and the content that write writes. Readers get the old or the new file,
// also after a crash. After an error the old one stays as it is. The temporary file is in the same directory, with a
// name such as .file.123.new, so that programs that read all files of a kind ignore it.
func Write(path string, mode fs.FileMode, write func(io.Writer) error) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.new")
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	err = write(temporary)
	if err == nil {
		err = errors.Join(temporary.Chmod(mode), temporary.Sync())
	}
	if err = errors.Join(err, temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary.Name()))
	}
	return nil
}

// Bytes replaces a file by one with this mode and content, as Write does.
func Bytes(path string, mode fs.FileMode, content []byte) error {
	return Write(path, mode, func(w io.Writer) error {
		_, err := w.Write(content)
		return err //nolint:wrapcheck // it names the file
	})
}
