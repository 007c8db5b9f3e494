package replacefile_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/sonde-mesh/sonde/internal/replacefile"
)

func TestBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, content := range []string{"first", "second"} {
		if err := replacefile.Bytes(path, 0o640, []byte(content)); err != nil {
			t.Fatal(err)
		}
		want(t, path, content)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode = %v, %v, want 0640", info.Mode(), err)
	}
}

// After an error the old file is there, and no other one.
func TestWriteFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := replacefile.Bytes(path, 0o600, []byte("old")); err != nil {
		t.Fatal(err)
	}
	full := errors.New("disk full")
	err := replacefile.Write(path, 0o600, func(w io.Writer) error {
		_, err := io.WriteString(w, "half")
		return errors.Join(err, full)
	})
	if !errors.Is(err, full) {
		t.Errorf("Write() = %v, want %v", err, full)
	}
	want(t, path, "old")
}

func want(t *testing.T, path, content string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != content {
		t.Errorf("the file has %q, %v, want %q", got, err, content)
	}
	if all, err := os.ReadDir(filepath.Dir(path)); err != nil || len(all) != 1 {
		t.Errorf("the directory has %v, %v, want one file", all, err)
	}
}
