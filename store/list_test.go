package store

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSkippedIsSaid checks that Dir and Read warn of a path that looks like a file of objects, but is not read.
func TestSkippedIsSaid(t *testing.T) {
	const (
		lowerCase = ": is not read: its name must end in .yaml, .yml or .json, in lower case"
		directory = ": is not read: it is a directory, and subdirectories are not read"
		noFile    = ": is not read: it is a named pipe, a socket or a device, not a regular file"
	)
	tests := map[string]struct {
		make func(path string) error
		name string
		want string
	}{
		"upper case":                    {touch, "X.YAML", lowerCase},
		"mixed case":                    {touch, "x.Json", lowerCase},
		"directory":                     {makeDirectory, "x.yml", directory},
		"directory in upper case":       {makeDirectory, "X.YML", directory},
		"named pipe":                    {makePipe, "x.yaml", noFile},
		"link to a directory":           {linkTo("."), "x.yaml", directory},
		"link to a device":              {linkTo("/dev/null"), "x.yaml", noFile},
		"link that leads nowhere":       {linkTo("nowhere"), "X.YAML", lowerCase},
		"hidden directory":              {makeDirectory, "..2026_01_01.yaml", ""},
		"lock of an editor":             {linkTo("me@host.1234"), ".#x.yaml", ""},
		"backup of an editor":           {touch, "x.yaml~", ""},
		"swap file of an editor":        {touch, ".x.yaml.swp", ""},
		"directory with another ending": {makeDirectory, "x.d", ""},
		"no ending":                     {makePipe, "yaml", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.write("good.yaml", service("a"))
			if err := tc.make(filepath.Join(f.path, tc.name)); err != nil {
				t.Fatal(err)
			}
			f.expect("start", f.settled(), "set Service default a", "synced")
			f.look(defaultRescan)
			documents, problems, err := Read(f.path, nil, "")
			if err != nil || len(documents) != 1 {
				t.Errorf("Read() = %v, %v", documents, err)
			}
			var want []string
			if tc.want != "" {
				want = []string{"warning " + filepath.Join(f.path, tc.name) + tc.want}
			}
			for by, problems := range map[string][]Problem{"Dir": f.dir.Problems(), "Read": problems} {
				var got []string
				for _, p := range problems {
					got = append(got, p.Severity.String()+" "+p.Error())
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("problems of %s (-want +got):\n%s", by, diff)
				}
			}
			if n := strings.Count(f.log.String(), "level=WARN"); n != len(want) {
				t.Errorf("log has %d warnings, want %d:\n%s", n, len(want), f.log.String())
			}
			if err := os.Remove(filepath.Join(f.path, tc.name)); err != nil {
				t.Fatal(err)
			}
			f.expect("removed", f.settled())
			f.expectProblems("removed")
		})
	}
}

func touch(path string) error         { return os.WriteFile(path, []byte(broken), 0o600) }
func makeDirectory(path string) error { return os.Mkdir(path, 0o700) }
func makePipe(path string) error      { return syscall.Mkfifo(path, 0o600) }

func linkTo(target string) func(path string) error {
	return func(path string) error { return os.Symlink(target, path) }
}

// TestDirKeepsWhatALinkLedTo has a link whose target disappears and returns: meanwhile it is a file that cannot be
// read.
func TestDirKeepsWhatALinkLedTo(t *testing.T) {
	f := newFixture(t)
	const good = "object file is valid again"
	f.write("target", service("a"))
	if err := os.Symlink("target", filepath.Join(f.path, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	f.expect("start", f.settled(), "set Service default a", "synced")
	f.expectProblems("start")

	f.remove("target")
	f.expect("leads nowhere", f.settled())
	f.expectProblems("leads nowhere", "a.yaml: read objects: a link to target: open a.yaml: no such file or directory")
	f.expect("is tried again", append(f.look(defaultRescan), f.settled()...))
	if _, _, err := Read(f.path, nil, ""); err == nil || !strings.Contains(err.Error(), "a link to target") {
		t.Errorf("Read() = %v, want an error", err)
	}
	f.write("target", service("b"))
	f.expect("back", f.settled(), "set Service default b", "delete Service default a")
	f.expectProblems("back")
	if n := strings.Count(f.log.String(), good); n != 1 {
		t.Errorf("%q is %d times in the log:\n%s", good, n, f.log.String())
	}

	f.remove("target")
	f.settled()
	f.remove("a.yaml")
	f.expect("link removed", f.settled(), "delete Service default b")
	f.expectProblems("end", errNoObject.Error())
}

// TestReadEntryDoesNotWait has a named pipe without a writer in place of a file that was listed.
func TestReadEntryDoesNotWait(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "x.yaml")
	if err := makePipe(pipe); err != nil {
		t.Fatal(err)
	}
	if _, err := readEntry(pipe); err == nil || !strings.Contains(err.Error(), "is no longer a regular file") {
		t.Errorf("readEntry() = %v, want an error", err)
	}
}
