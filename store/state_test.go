package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func openState(t *testing.T, path string) *State {
	t.Helper()
	s, err := OpenState(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStateKeepsFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "state")
	s := openState(t, path)
	if _, err := s.Read("meshes/default/ca.key"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read() of nothing = %v, want fs.ErrNotExist", err)
	}
	for _, text := range []string{"first, and longer", "second"} {
		if err := s.Write("meshes/default/ca.key", []byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openState(t, path)
		if got, err := s.Read("meshes/default/ca.key"); err != nil || string(got) != text {
			t.Errorf("Read() = %q, %v, want %q", got, err, text)
		}
	}
	if err := s.Write("admin-token", nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{
		".": 0o700 | fs.ModeDir, "meshes/default": 0o700 | fs.ModeDir, "meshes/default/ca.key": 0o600, "admin-token": 0o600,
	} {
		if info, err := os.Stat(filepath.Join(path, name)); err != nil || info.Mode() != want {
			t.Errorf("mode of %s = %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
}

func TestStateList(t *testing.T) {
	s := openState(t, t.TempDir()+"/state")
	for _, name := range []string{"b", "a", "d/x", "d/y/z"} {
		if err := s.Write(name, []byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	for directory, want := range map[string][]string{".": {"a", "b", "d"}, "d": {"x", "y"}, "none": nil} {
		got, err := s.List(directory)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("List(%s) (-want +got):\n%s", directory, diff)
		}
	}
}

func TestStateRemove(t *testing.T) {
	s := openState(t, t.TempDir()+"/state")
	if err := s.Write("a/b", []byte("x")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Remove("a/b"); err != nil {
			t.Errorf("Remove() = %v", err)
		}
	}
	if _, err := s.Read("a/b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Read() of a removed file = %v", err)
	}
}

func TestStateRefusesNames(t *testing.T) {
	top := t.TempDir()
	s := openState(t, filepath.Join(top, "state"))
	if err := os.WriteFile(filepath.Join(top, "outside"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(top, filepath.Join(top, "state", "link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", ".", "..", "../outside", "/etc/passwd", "a/../../outside", "a//b", "a/", ".hidden", "a/.hidden", "link/outside"} {
		if got, err := s.Read(name); err == nil {
			t.Errorf("Read(%q) = %q", name, got)
		}
		if err := s.Write(name, nil); err == nil {
			t.Errorf("Write(%q) succeeded", name)
		}
		if err := s.Remove(name); err == nil {
			t.Errorf("Remove(%q) succeeded", name)
		}
		if _, err := s.List(name); err == nil && name != "." {
			t.Errorf("List(%q) succeeded", name)
		}
	}
	if got, err := os.ReadFile(filepath.Join(top, "outside")); err != nil || string(got) != "secret" {
		t.Errorf("the file outside = %q, %v", got, err)
	}
}

func TestStateRefusesOpenDirectory(t *testing.T) {
	for _, mode := range []fs.FileMode{0o755, 0o770, 0o701} {
		path := filepath.Join(t.TempDir(), "state")
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		want := strconv.FormatUint(uint64(mode), 8) + "): must be a dedicated directory"
		if _, err := OpenState(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("OpenState() with mode %o = %v, want %q", mode, err, want)
		}
	}
}

// A directory of another program is rejected and not changed. A directory that is empty, or was restored from a backup,
// is used.
func TestStateRefusesForeignDirectory(t *testing.T) {
	const refused = "and no state of sonde-cp: must be an empty directory, or one that does not exist yet, such as /"
	for name, tc := range map[string]struct {
		files []string // names that end in / are directories
		want  string
	}{
		"empty":                     {},
		"an empty disk":             {files: []string{"lost+found/"}},
		"an empty volume of a NAS":  {files: []string{".snapshot/", ".snapshots/", ".trashcan/", "@eaDir/", ".gitkeep"}},
		"a home":                    {files: []string{".bashrc", ".ssh/"}, want: refused},
		"one file":                  {files: []string{"notes"}, want: `it has files, such as "notes", ` + refused},
		"used before":               {files: []string{".lock", "notes"}},
		"a backup without its lock": {files: []string{"meshes/", "serving-ca.json", "addresses.json"}},
		"a token that a user wrote": {files: []string{"admin-token"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			err := os.Chmod(path, 0o700)
			for _, file := range tc.files {
				if inner, directory := strings.CutSuffix(file, "/"); directory {
					err = errors.Join(err, os.Mkdir(filepath.Join(path, inner), 0o700))
				} else {
					err = errors.Join(err, os.WriteFile(filepath.Join(path, file), nil, 0o600))
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			s, err := OpenState(path)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("OpenState() = %v, want %q", err, tc.want)
			}
			if err == nil {
				err = s.Close()
			} else if _, locked := os.Stat(filepath.Join(path, lockFile)); locked == nil {
				t.Error("it has left its lock there")
			}
			if tc.want == "" && err != nil {
				t.Error(err)
			}
		})
	}
}

// A file that is not a regular file, or is too large, is rejected at once, and does not block later reads.
func TestStateReadsRegularFilesAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	s := openState(t, path)
	in := func(name string) string { return filepath.Join(path, name) }
	if err := errors.Join(
		syscall.Mkfifo(in("fifo"), 0o600), os.Mkdir(in("directory"), 0o700), os.WriteFile(in("large"), nil, 0o600), os.Truncate(in("large"), 1<<30),
		os.WriteFile(in("small"), []byte("x"), 0o600), os.Symlink("fifo", in("link")),
	); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"fifo": "it is not a regular file (p", "link": "it is not a regular file (p", "directory": "it is not a regular file (d",
		"large": "it has 1073741824 bytes: must have at most 16777216",
	} {
		if _, err := s.Read(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Read(%s) = %v, want %q", name, err, want)
		}
	}
	if _, err := s.List("fifo"); err == nil || !strings.Contains(err.Error(), "fifo is not a directory (p") {
		t.Errorf("List() = %v", err)
	}
	if data, err := s.Read("small"); err != nil || string(data) != "x" {
		t.Errorf("Read() = %q, %v", data, err)
	}
}

// A crash while writing leaves a temporary file behind.
func TestStateSurvivesCrashWhileWriting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	s := openState(t, path)
	if err := s.Write("key", []byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(path, ".key.tmp"), []byte("half a k"), 0o644), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = openState(t, path)
	if got, err := s.Read("key"); err != nil || string(got) != "old" {
		t.Errorf("Read() = %q, %v", got, err)
	}
	if names, err := s.List("."); err != nil || len(names) != 1 {
		t.Errorf("List() = %v, %v, want the key alone", names, err)
	}
	if err := s.Write("key", []byte("new")); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Read("key"); err != nil || string(got) != "new" {
		t.Errorf("Read() = %q, %v", got, err)
	}
	if info, err := os.Stat(filepath.Join(path, "key")); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode = %v, %v, want 0600", info.Mode(), err)
	}
}

// Readers see either the complete old content or the complete new one.
func TestStateWritesAtOnce(t *testing.T) {
	s := openState(t, t.TempDir()+"/state")
	contents := []string{strings.Repeat("a", 10_000), strings.Repeat("b", 20_000)}
	if err := s.Write("key", []byte(contents[0])); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for _, text := range contents {
		writers.Go(func() {
			for range 20 {
				if err := s.Write("key", []byte(text)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		if got, err := s.Read("key"); err != nil || string(got) != contents[0] && string(got) != contents[1] {
			t.Fatalf("Read() = %d bytes, %v", len(got), err)
		}
	}
}

func TestStateHasOneUser(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	s := openState(t, path)
	if _, err := OpenState(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "another sonde-cp uses it") {
		t.Errorf("OpenState() of a directory in use: error = %v, want one that names directory and user", err)
	}
	if err := os.Remove(filepath.Join(path, lockFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenState(path); err == nil || !strings.Contains(err.Error(), "another sonde-cp uses it") {
		t.Errorf("OpenState() of a directory in use, without its lock file: error = %v, want one that says so", err)
	}
	if err := s.Write("a", []byte("x")); err != nil {
		t.Errorf("Write() after somebody else was refused: %v", err)
	}
	if names, err := s.List("."); err != nil || len(names) != 1 {
		t.Errorf("List() = %q, %v, want the file alone", names, err)
	}
}

func TestStateExposed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	s := openState(t, path)
	for name, mode := range map[string]os.FileMode{"a": 0o600, "b": 0o644, "meshes/m/ca.json": 0o640, "meshes/m/c": 0o400, "d": 0o604} {
		if err := s.Write(name, nil); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(path, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"b", "d", "meshes/m/ca.json"}
	if os.Geteuid() == 0 {
		want = []string{".", "b", "d", "meshes/m/ca.json", "meshes/m/other"}
		err := s.Write("meshes/m/other", nil)
		if err := errors.Join(err, os.Chown(path, 12345, -1), os.Chown(filepath.Join(path, "meshes/m/other"), 12345, -1)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Exposed()
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("Exposed() = %q, %v, want %q", got, err, want)
	}
}

func TestStateCheck(t *testing.T) {
	tests := map[string]struct {
		harm func(path string) error
		want string // "" for no error
	}{
		"untouched": {func(string) error { return nil }, ""},
		"removed":   {os.RemoveAll, "was removed"},
		"replaced": {func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.Mkdir(path, 0o700))
		}, "was replaced by another one"},
		"a file instead": {func(path string) error {
			return errors.Join(os.RemoveAll(path), os.WriteFile(path, nil, 0o600))
		}, "was replaced by another one"},
		"moved and linked": {func(path string) error {
			return errors.Join(os.Rename(path, path+".moved"), os.Symlink(path+".moved", path))
		}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state")
			s := openState(t, path)
			if err := tc.harm(path); err != nil {
				t.Fatal(err)
			}
			switch err := s.Check(); {
			case tc.want == "" && err != nil:
				t.Errorf("Check() = %v, want nil", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("Check() = %v, want one that names %s and says %q", err, path, tc.want)
			}
		})
	}
}
