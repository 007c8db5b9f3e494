package tier_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/tools/tier"
)

// read reads a list with these lines.
func read(t *testing.T, lines ...string) (*tier.Tiers, error) {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "test"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, tier.List), []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return tier.Read(root)
}

func TestReal(t *testing.T) {
	tiers, err := read(t, "# real, and quick", "", "test/fidelity  asks by the kubelet's own code", "dpagent/disk a full disk")
	if err != nil {
		t.Fatal(err)
	}
	for directory, want := range map[string]bool{
		"agents": false, "dpagent": false, "dpagent/disk": true, "dpagent/disk/deeper": false, "test/fidelity": true, "test/fidelity/cases": false,
		"test/real": true, "test/real/kube": true, "test/realm": false, "test/e2e": true, "test/e2e/kit": true, "test/bench/xds": true, ".": false,
	} {
		if got := tiers.Real(directory); got != want {
			t.Errorf("Real(%q) = %t, want %t", directory, got, want)
		}
	}
}

func TestInvalidLines(t *testing.T) {
	for name, tc := range map[string]struct{ lines, want string }{
		"no reason": {"test/feature", "test/fast.txt:1: package test/feature has no reason"},
		"twice":     {"test/feature a\ntest/feature b", "test/fast.txt:2: package test/feature is listed twice"},
		"dot":       {"./test/feature a", "invalid path ./test/feature"},
		"slash":     {"test/feature/ a", "invalid path test/feature/"},
		"absolute":  {"/test/feature a", "invalid path /test/feature"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := read(t, tc.lines); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Read() error = %v, want %q", err, tc.want)
			}
		})
	}
	if _, err := tier.Read(t.TempDir()); err == nil {
		t.Error("Read() of no file has no error")
	}
}

func TestUnknown(t *testing.T) {
	tiers, err := read(t, "test/feature a", "test/gone b")
	if err != nil {
		t.Fatal(err)
	}
	err = tiers.Unknown(map[string]bool{"test/feature": true, "agents": true})
	if err == nil || !strings.HasPrefix(err.Error(), "test/fast.txt:2: no package in test/gone") || strings.Contains(err.Error(), "feature") {
		t.Errorf("Unknown() = %v, want test/gone alone", err)
	}
}
