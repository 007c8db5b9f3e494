package install_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/cni/install"
)

const network = `{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"ptp"}]}`

// node is a node's directories.
type node struct {
	install.Options
	t      *testing.T
	writes int
}

func newNode(t *testing.T, files map[string]string) *node {
	t.Helper()
	n := &node{t: t, Options: install.Options{
		ConfigDir: t.TempDir(), PluginDir: t.TempDir(), Plugin: filepath.Join(t.TempDir(), "plugin"), Socket: "/run/d.sock", Logger: slog.New(slog.DiscardHandler),
	}}
	n.write(n.Plugin, "program")
	for name, text := range files {
		n.write(filepath.Join(n.ConfigDir, name), text)
	}
	return n
}

func (n *node) installer() *install.Installer {
	return install.New(n.Options, func() { n.writes++ })
}

func (n *node) write(path, text string) {
	n.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) config(name string) string {
	n.t.Helper()
	text, err := os.ReadFile(filepath.Join(n.ConfigDir, name))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}

func (n *node) names(directory string) (names []string) {
	n.t.Helper()
	entries, err := os.ReadDir(directory)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestEnsure(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conflist": network, "20-other.conflist": network, "calico-kubeconfig": "x"})
	i := n.installer()
	if s := i.Ensure(); s.Err != nil || filepath.Base(s.File) != "10-pods.conflist" || len(s.After) > 0 {
		t.Fatalf("Ensure() = %+v", s)
	}
	if !strings.Contains(n.config("10-pods.conflist"), `"sonde-cni"`) || n.config("20-other.conflist") != network {
		t.Errorf("the first has %s, the other %s", n.config("10-pods.conflist"), n.config("20-other.conflist"))
	}
	info, err := os.Stat(filepath.Join(n.PluginDir, "sonde-cni"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the plugin's file: %v, %v", info, err)
	}
	if info, err := os.Stat(filepath.Join(n.ConfigDir, "10-pods.conflist")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of the configuration has changed: %v, %v", info, err)
	}
	if s := i.Ensure(); s.Err != nil || n.writes != 1 {
		t.Errorf("Ensure() again = %+v, %d writes in all", s, n.writes)
	}
	if names := n.names(n.ConfigDir); len(names) != 3 {
		t.Errorf("files are left: %q", names)
	}
}

// Another program changes the plugin's file or entry.
func TestEnsureAgain(t *testing.T) {
	tests := map[string]struct {
		change func(*node)
		file   string
		after  []string
	}{
		"the configuration is written anew": {func(n *node) { n.write(filepath.Join(n.ConfigDir, "10-pods.conflist"), network) }, "10-pods.conflist", nil},
		"one that comes first":              {func(n *node) { n.write(filepath.Join(n.ConfigDir, "05-cilium.conflist"), network) }, "05-cilium.conflist", nil},
		"a plugin after ours": {func(n *node) {
			n.write(filepath.Join(n.ConfigDir, "10-pods.conflist"), `{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"ptp"},{"type":"sonde-cni"},{"type":"istio-cni"}]}`)
		}, "10-pods.conflist", []string{"istio-cni"}},
		"the plugin's file": {func(n *node) { n.write(filepath.Join(n.PluginDir, "sonde-cni"), "another") }, "10-pods.conflist", nil},
		"an upgrade":        {func(n *node) { n.write(n.Plugin, "newer program") }, "10-pods.conflist", nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, map[string]string{"10-pods.conflist": network})
			i := n.installer()
			if s := i.Ensure(); s.Err != nil {
				t.Fatal(s.Err)
			}
			tc.change(n)
			s := i.Ensure()
			if s.Err != nil || filepath.Base(s.File) != tc.file || !slices.Equal(s.After, tc.after) {
				t.Errorf("Ensure() = %+v", s)
			}
			if !strings.Contains(n.config(tc.file), `"/run/d.sock"`) {
				t.Errorf("%s has %s", tc.file, n.config(tc.file))
			}
			want, err := os.ReadFile(n.Plugin)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(filepath.Join(n.PluginDir, "sonde-cni")); err != nil || !bytes.Equal(got, want) {
				t.Errorf("the plugin's file has %q, %v", got, err)
			}
		})
	}
}

// Another program removes the entry at once, such as Cilium with cni-exclusive, and later stops.
func TestContested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, map[string]string{"10-pods.conflist": network})
		i := n.installer()
		var texts []string
		for began := time.Now(); time.Since(began) < 10*time.Minute; {
			s := i.Ensure()
			texts = append(texts, fmt.Sprint(s.Err))
			n.write(filepath.Join(n.ConfigDir, "10-pods.conflist"), network)
			time.Sleep(min(s.Again, time.Second)) // the write causes an event
		}
		if n.writes < 40 || n.writes > 50 {
			t.Errorf("the entry was written %d times in 10 minutes, want about every 15 seconds", n.writes)
		}
		if texts = slices.Compact(texts); len(texts) != 2 || texts[0] != "<nil>" || !strings.Contains(texts[1], "keeps removing") {
			t.Errorf("the condition became %q, want one change", texts)
		}
		for began := time.Now(); ; {
			s := i.Ensure()
			if s.Err == nil {
				break
			}
			if time.Since(began) > time.Minute {
				t.Fatalf("a minute after the other program has stopped: %+v", s)
			}
			time.Sleep(s.Again)
		}
		n.write(filepath.Join(n.ConfigDir, "10-pods.conflist"), network)
		if s := i.Ensure(); s.Err != nil {
			t.Errorf("after one more write: %v", s.Err)
		}
	})
}

func TestNotInstalled(t *testing.T) {
	tests := map[string]struct {
		files map[string]string
		want  string
	}{
		"no configuration yet": {nil, "no CNI configuration found"},
		"a single plugin":      {map[string]string{"05-old.conf": `{"name":"a","type":"ptp"}`, "10-pods.conflist": network}, "must be a .conflist"},
		"no JSON":              {map[string]string{"10-pods.conflist": "{"}, "10-pods.conflist: error parsing"},
		"too large":            {map[string]string{"10-pods.conflist": strings.Repeat(" ", 1<<20+1)}, "must have at most 1048576"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, tc.files)
			if s := n.installer().Ensure(); s.Err == nil || !strings.Contains(s.Err.Error(), tc.want) {
				t.Errorf("Ensure() = %v, want %s", s.Err, tc.want)
			}
			for name, text := range tc.files {
				if n.config(name) != text {
					t.Errorf("%s was changed", name)
				}
			}
		})
	}
}

func TestUninstall(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conflist": network, "90-invalid.conflist": "{"})
	i := n.installer()
	if s := i.Ensure(); s.Err != nil {
		t.Fatal(s.Err)
	}
	n.write(filepath.Join(n.ConfigDir, "05-first.conflist"), network)
	if s := i.Ensure(); s.Err != nil { // both now have the entry
		t.Fatal(s.Err)
	}
	for range 2 {
		if err := i.Uninstall(); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"05-first.conflist", "10-pods.conflist"} {
			if strings.Contains(n.config(name), "sonde-cni") {
				t.Errorf("%s has %s", name, n.config(name))
			}
		}
		if names := n.names(n.PluginDir); len(names) != 1 {
			t.Errorf("plugins %q, want ours, for the pods that started with it", names)
		}
	}
}

// An unreadable file does not prevent the removal of the entry from other files.
func TestUninstallThatFails(t *testing.T) {
	n := newNode(t, map[string]string{"10-pods.conflist": network})
	i := n.installer()
	if s := i.Ensure(); s.Err != nil {
		t.Fatal(s.Err)
	}
	n.write(filepath.Join(n.ConfigDir, "05-large.conflist"), strings.Repeat(" ", 1<<20+1))
	if err := i.Uninstall(); err == nil || !strings.Contains(err.Error(), "05-large.conflist") {
		t.Errorf("Uninstall() = %v", err)
	}
	if strings.Contains(n.config("10-pods.conflist"), "sonde-cni") {
		t.Errorf("10-pods.conflist has %s", n.config("10-pods.conflist"))
	}
}
