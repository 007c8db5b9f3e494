// Package guide follows the guides of docs word by word, with the real programs.
package guide

import (
	"bytes"
	"context"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// block matches a block of a guide: sh for commands, text for their output.
var block = regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$")

// part is a page below docs, or a section of a page.
type part struct {
	page    string
	section string // its heading; "" means the whole page
	// steps is the number of blocks of commands to run, from the first; 0 means all.
	steps int
}

// tenCommands is the section with which most guides begin.
var tenCommands = part{page: "guides/first-mesh.md", section: "Ten commands"}

// guides are the sessions of a reader, each in its own shell.
var guides = map[string][]part{
	"first-mesh":       {tenCommands},
	"universal-health": {tenCommands, {page: "guides/universal-health.md"}},
	"from-kuma":        {{page: "guides/from-kuma.md"}},
	"health":           {tenCommands, {page: "guides/health.md"}},
	"load-balancers":   {tenCommands, {page: "guides/load-balancers.md"}},
	"serving-ca":       {tenCommands, {page: "guides/serving-ca.md"}},
}

// onCluster has the guides that test/e2e follows.
var onCluster = []part{{page: "guides/install.md"}, {page: "guides/upgrade.md"}, {page: "guides/uninstall.md"}}

// TestGuides runs the commands of each guide in one shell in an empty directory, and compares their output. The
// guides use fixed ports, so the test has its own network namespace.
func TestGuides(t *testing.T) {
	slowtest.Skip(t, "the commands of the guides run, with real Envoys")
	t.Parallel()
	path := programs(t)
	for name, parts := range guides {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			follow(t, path, parts)
		})
	}
}

// programs returns a directory with links to the programs of the guides.
func programs(t *testing.T) string {
	t.Helper()
	built, err := harness.Build(t.Context(), false)
	must.Do(t, err)
	directory := t.TempDir()
	for name, file := range map[string]string{
		"sonde-cp": built.ControlPlane, "sonde-dp": built.Agent, "sondectl": built.Ctl, "envoy": built.Envoy,
	} {
		must.Do(t, os.Symlink(file, filepath.Join(directory, name)))
	}
	return directory
}

// follow runs the commands of parts. path is a directory with the programs.
func follow(t *testing.T, path string, parts []part) {
	namespace := redirecttest.New(t)
	directory := t.TempDir()
	commands, want := read(t, parts)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", "set -euo pipefail\ntrap 'kill $(jobs -p); wait' EXIT\n"+commands)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // so that it ends its own processes
	cmd.Dir = directory
	cmd.Env = append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	cmd.WaitDelay = time.Minute
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	begun := time.Now()
	must.Do(t, namespace.Do(cmd.Start))
	if err := cmd.Wait(); err != nil {
		logs, _ := filepath.Glob(filepath.Join(directory, "*.log"))
		for _, name := range logs {
			log, _ := os.ReadFile(name)
			t.Logf("%s:\n%s", filepath.Base(name), log)
		}
		t.Fatalf("%v\n%s\n%s", err, &stdout, &stderr)
	}
	t.Logf("it took %s", time.Since(begun).Round(time.Millisecond))
	if diff := cmp.Diff(want, strings.ReplaceAll(stdout.String(), directory, "$PWD")); diff != "" {
		t.Errorf("it prints (-want +got):\n%s\nstderr:\n%s", diff, &stderr)
	}
}

// read returns the commands of parts, and their expected output.
func read(t *testing.T, parts []part) (commands, output string) {
	t.Helper()
	var sh, text strings.Builder
	for _, p := range parts {
		steps := 0
		for _, b := range block.FindAllStringSubmatch(p.text(t), -1) {
			if b[1] == "text" {
				text.WriteString(b[2])
				continue
			}
			if steps++; p.steps > 0 && steps > p.steps {
				break
			}
			sh.WriteString(b[2])
		}
		if steps == 0 || steps < p.steps {
			t.Errorf("docs/%s has %d blocks of commands in section %q", p.page, steps, p.section)
		}
	}
	return sh.String(), text.String()
}

// text returns the text of a part.
func (p part) text(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(docs(t), p.page))
	must.Do(t, err)
	if p.section == "" {
		return string(data)
	}
	_, text, found := strings.Cut(string(data), "\n## "+p.section+"\n")
	if !found {
		t.Fatalf("docs/%s has no section %q", p.page, p.section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// docs returns the directory of all guides.
func docs(t *testing.T) string {
	t.Helper()
	root, err := harness.Root()
	must.Do(t, err)
	return filepath.Join(root, "docs")
}

// TestAllAreFollowed fails for sh blocks that no test runs.
func TestAllAreFollowed(t *testing.T) {
	followed := map[string]bool{}
	for _, parts := range append(slices.Collect(maps.Values(guides)), underSystemd, onCluster) {
		for _, p := range parts {
			if p.steps > 0 {
				continue
			}
			for _, b := range block.FindAllString(p.text(t), -1) {
				followed[b] = true
			}
		}
	}
	must.Do(t, filepath.WalkDir(docs(t), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".md" {
			return err
		}
		data, err := os.ReadFile(path)
		for _, b := range block.FindAllString(string(data), -1) {
			if !followed[b] {
				t.Errorf("%s: no test runs\n%s", path, b)
			}
		}
		return err
	}))
}
