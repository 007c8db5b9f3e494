package filelock

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckPrivate checks that the error never suggests a new mode for a system directory.
func TestCheckPrivate(t *testing.T) {
	const foreign = "must be a dedicated directory: choose a path that does not exist yet"
	tests := map[string]struct {
		mode os.FileMode
		file string // file in the directory; a name that ends with / is a directory
		want string // "" for none
	}{
		"closed":                           {mode: 0o700},
		"closed, with files":               {mode: 0o700, file: "passwd"},
		"a directory of the system":        {mode: 0o755, file: "passwd", want: "other users may enter it (mode 0755): " + foreign},
		"an empty one, such as /mnt":       {mode: 0o755, want: foreign},
		"a directory lock, such as /run's": {mode: 0o755, file: "lock/", want: foreign},
		"for all":                          {mode: 0o777, want: "(mode 0777): " + foreign},
		"that others may enter alone":      {mode: 0o701, want: foreign},
		"that was claimed before":          {mode: 0o750, file: "lock", want: "other users may enter it (mode 0750): must have mode 0700, as when created"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			if inner, isDirectory := strings.CutSuffix(tc.file, "/"); isDirectory {
				if err := os.Mkdir(filepath.Join(directory, inner), 0o700); err != nil {
					t.Fatal(err)
				}
			} else if tc.file != "" {
				if err := os.WriteFile(filepath.Join(directory, tc.file), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chmod(directory, tc.mode); err != nil {
				t.Fatal(err)
			}
			err := CheckPrivate(directory, "lock")
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("CheckPrivate() = %v, want %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "chmod") {
				t.Errorf("CheckPrivate() = %v suggests a new mode", err)
			}
		})
	}
}
