package dpagent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCopyProgram(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "helper"), t.TempDir()
	for _, text := range []string{"one", "the next release"} {
		if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := copyProgram(from, to); err != nil {
			t.Fatal(err)
		}
		copied := filepath.Join(to, "helper")
		got, err := os.ReadFile(copied)
		if err != nil || string(got) != text {
			t.Errorf("the copy is %q, %v, want %q", got, err, text)
		}
		if info, err := os.Stat(copied); err != nil || info.Mode() != 0o755 {
			t.Errorf("its mode is %v, %v, want 0755", info.Mode(), err)
		}
	}
	if all, err := os.ReadDir(to); err != nil || len(all) != 1 {
		t.Errorf("the directory has %v, %v", all, err)
	}
}

// TestCopyProgramAgain checks that an equal copy is kept even if the directory accepts no new file, as if it were full:
// here the name is too long for a temporary file.
func TestCopyProgramAgain(t *testing.T) {
	name, to := strings.Repeat("h", 250), t.TempDir()
	from := filepath.Join(t.TempDir(), name)
	err := errors.Join(os.WriteFile(from, []byte("one"), 0o600), os.WriteFile(filepath.Join(to, name), []byte("one"), 0o600),
		os.Chmod(filepath.Join(to, name), 0o755))
	if err != nil {
		t.Fatal(err)
	}
	if err := copyProgram(from, to); err != nil {
		t.Errorf("an equal program is copied again: %v", err)
	}
	if err := os.WriteFile(from, []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := copyProgram(from, to); err == nil {
		t.Error("another program has been copied to a directory that accepts none")
	}
}

// TestCopyProgramFails checks that a failed copy leaves nothing behind: a directory has the name of the copy.
func TestCopyProgramFails(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "helper"), t.TempDir()
	err := errors.Join(os.WriteFile(from, []byte("one"), 0o600), os.MkdirAll(filepath.Join(to, "helper", "full"), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	if err := copyProgram(from, to); err == nil {
		t.Error("a program has replaced a directory")
	}
	if all, err := os.ReadDir(to); err != nil || len(all) != 1 {
		t.Errorf("the directory has %v, %v", all, err)
	}
}

func TestCopyProgramThatIsMissing(t *testing.T) {
	err := copyProgram(filepath.Join(t.TempDir(), "helper"), t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "helper: no such file or directory") {
		t.Errorf("copyProgram() error = %v", err)
	}
}
