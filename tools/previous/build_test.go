package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// makefile builds the files of a release.
const makefile = `build:
	@mkdir bin && echo program >bin/sonde-cp
image:
	@echo $(TAG) >bin/sonde-image.tar
`

// newRepository returns a repository with one commit, and that commit.
func newRepository(t *testing.T, makefile string) (directory, commit string) {
	t.Helper()
	directory = t.TempDir()
	for name, text := range map[string]string{"Makefile": makefile, "deploy/chart/Chart.yaml": "name: sonde\n"} {
		write(t, filepath.Join(directory, name), text)
	}
	git(t, directory, "init", "--quiet")
	git(t, directory, "add", "--all")
	git(t, directory, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--message=one")
	return directory, git(t, directory, "rev-parse", "HEAD")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func git(t *testing.T, directory string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir, cmd.Stderr = directory, t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestBuild(t *testing.T) {
	repository, commit := newRepository(t, makefile)
	write(t, filepath.Join(repository, file), "# the last one\n\n"+commit+"\n")
	write(t, filepath.Join(repository, "Makefile"), "build:\n\t@false\n") // different from the commit
	b := builder{repository: repository, cache: t.TempDir(), progress: t.Output()}
	directory, err := b.build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, directory, "bin", "sonde-cp") + read(t, directory, "chart", "Chart.yaml"); got != "program\nname: sonde\n" {
		t.Errorf("it has built %q", got)
	}

	b.tag = "a:1" // the image is still missing
	if _, err := b.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := read(t, directory, "image.tar"); got != "a:1\n" {
		t.Errorf("the image is %q", got)
	}
	write(t, filepath.Join(directory, "bin", "kept"), "")
	if again, err := b.build(t.Context()); err != nil || again != directory || read(t, directory, "bin", "kept") != "" {
		t.Errorf("what is there is built again: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(b.cache, "previous", "*"))
	if err != nil || len(left) != 2 { // and the lock
		t.Errorf("there is %q, %v", left, err)
	}
}

func TestWhatCannotBeBuilt(t *testing.T) {
	const other = "0123456789012345678901234567890123456789"
	tests := map[string]struct {
		file    string
		missing bool
		want    string
	}{
		"another history": {other, true, "git fetch --unshallow"},
		"a short commit":  {"0123456", false, `test/real/upgrade/previous: "0123456": must be a commit, 40 hexadecimal digits`},
		"no commit":       {"# none", false, "test/real/upgrade/previous: names no commit"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			repository, _ := newRepository(t, makefile)
			write(t, filepath.Join(repository, file), tc.file+"\n")
			b := builder{repository: repository, cache: t.TempDir(), progress: t.Output()}
			if _, err := b.build(t.Context()); err == nil || errors.Is(err, errMissing) != tc.missing || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("build() = %v, want %q in it, missing %t", err, tc.want, tc.missing)
			}
		})
	}
	t.Run("a build that fails", func(t *testing.T) {
		repository, commit := newRepository(t, "build:\n\t@echo no compiler; false\n")
		write(t, filepath.Join(repository, file), commit+"\n")
		b := builder{repository: repository, cache: t.TempDir(), progress: t.Output()}
		if _, err := b.build(t.Context()); err == nil || !strings.Contains(err.Error(), "no compiler") {
			t.Errorf("build() = %v, want what make says", err)
		}
		if left, err := filepath.Glob(filepath.Join(b.cache, "previous", "*")); err != nil || len(left) != 1 { // the lock
			t.Errorf("it leaves %q, %v", left, err)
		}
	})
}
