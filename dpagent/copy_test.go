package dpagent

import (
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
	if all, err := filepath.Glob(filepath.Join(to, "*")); err != nil || len(all) != 1 {
		t.Errorf("the directory has %q, %v", all, err)
	}
}

func TestCopyProgramThatIsMissing(t *testing.T) {
	err := copyProgram(filepath.Join(t.TempDir(), "helper"), t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "helper: no such file or directory") {
		t.Errorf("copyProgram() error = %v", err)
	}
}
