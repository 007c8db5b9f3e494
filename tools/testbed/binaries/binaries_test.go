package binaries

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestStagingReplaces(t *testing.T) {
	tests := map[string]struct {
		goMod   string
		want    []string
		problem string
	}{
		"directories": {
			goMod: "module k8s.io/kubernetes\n\nreplace (\n\tk8s.io/apimachinery => ./staging/src/k8s.io/apimachinery\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n",
			want:  []string{"k8s.io/api@v0.36.3", "k8s.io/apimachinery@v0.36.3"},
		},
		"another module":   {goMod: "module k8s.io/kubernetes\n\nreplace k8s.io/api => example.com/fork v1.0.0\n", problem: "replaces k8s.io/api by example.com/fork"},
		"another prefix":   {goMod: "module k8s.io/kubernetes\n\nreplace example.com/x => ./x\n", problem: "replaces example.com/x by ./x"},
		"nothing replaced": {goMod: "module k8s.io/kubernetes\n", problem: "replaces nothing"},
		"no go.mod":        {goMod: "modul x\n", problem: "unknown directive"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			modules, err := stagingReplaces([]byte(tc.goMod), "k8s.io/", "v0.36.3")
			if tc.problem != "" {
				if err == nil || !strings.Contains(err.Error(), tc.problem) {
					t.Fatalf("stagingReplaces() error = %v, want one with %q", err, tc.problem)
				}
				return
			}
			var got []string
			for _, m := range modules {
				got = append(got, m.String())
			}
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("stagingReplaces() = %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

// TestGet builds a program that needs no download, and finds it the next time.
func TestGet(t *testing.T) {
	var progress strings.Builder
	g := &Getter{Cache: t.TempDir(), Progress: &progress}
	directory, err := g.Get(t.Context(), "pause")
	if err != nil {
		t.Fatal(err)
	}
	built, err := os.Stat(filepath.Join(directory, "pause"))
	if err != nil || built.Mode().Perm()&0o111 == 0 {
		t.Fatalf("Stat() = %v, %v, want a program", built, err)
	}
	again, err := g.Get(t.Context(), "pause")
	if again != directory || err != nil || strings.Count(progress.String(), "building pause") != 1 {
		t.Errorf("Get() = %q, %v, want %q; progress %q, want one build", again, err, directory, progress.String())
	}
	entries, err := os.ReadDir(directory)
	if err != nil || len(entries) != 1 {
		t.Errorf("ReadDir() = %v, %v, want pause alone", entries, err)
	}
}

func TestGetUnknown(t *testing.T) {
	_, err := (&Getter{Cache: t.TempDir(), Progress: io.Discard}).Get(t.Context(), "kubeadm")
	if err == nil || !strings.Contains(err.Error(), `no program "kubeadm": choose of containerd,`) {
		t.Errorf("Get() error = %v, want one that lists the programs", err)
	}
}

// TestTestPrograms checks that clusters do not get test programs, and that these are built from the same module.
func TestTestPrograms(t *testing.T) {
	for _, name := range Tests() {
		if slices.Contains(Programs(), name) {
			t.Errorf("a cluster needs %s", name)
		}
	}
	got := new(ofKubernetes("v1.37.2")).packages([]string{"kubelet", "e2e.test", "etcd"})
	want := map[string]string{"kubelet": "k8s.io/kubernetes/cmd/kubelet", "e2e.test": "k8s.io/kubernetes/test/e2e"}
	if !maps.Equal(got, want) {
		t.Errorf("packages() = %v, want %v", got, want)
	}
}
