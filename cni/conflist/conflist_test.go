package conflist_test

import (
	"encoding/json"

	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/cni/conflist"
	"github.com/sonde-mesh/sonde/internal/testing/golden"
)

const socket = "/run/sonde-cni/daemon.sock"

// TestGolden adds the plugin to configurations of Calico, Cilium and Flannel.
func TestGolden(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.conflist")
	if err != nil || len(inputs) < 5 {
		t.Fatalf("there are %q: %v", inputs, err)
	}
	files := map[string][]byte{}
	for _, file := range inputs {
		before := read(t, file)
		with, same, err := conflist.With(before, socket)
		if err != nil || same {
			t.Fatalf("With(%s) = %t, %v", file, same, err)
		}
		files[strings.TrimSuffix(filepath.Base(file), ".conflist")+".golden.json"] = with
		again, same, err := conflist.With(with, socket)
		if err != nil || !same || string(again) != string(with) {
			t.Errorf("%s: With() of its own result = %t, %v", file, same, err)
		}
		without, same, err := conflist.Without(with)
		if err != nil || same {
			t.Errorf("%s: Without() = %t, %v", file, same, err)
		}
		if diff := cmp.Diff(contents(t, before, true), contents(t, without, false)); diff != "" {
			t.Errorf("%s: -before +after both:\n%s", file, diff)
		}
	}
	golden.Files(t, "testdata", files, "*.golden.json")
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// contents returns all fields, with unchanged numbers, optionally without Sonde's entries.
func contents(t *testing.T, text []byte, leaveOut bool) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	var all map[string]any
	if err := d.Decode(&all); err != nil {
		t.Fatal(err)
	}
	if leaveOut {
		all["plugins"] = slices.DeleteFunc(all["plugins"].([]any), func(p any) bool { return p.(map[string]any)["type"] == conflist.Type })
	}
	return all
}

func TestAfter(t *testing.T) {
	later := read(t, "testdata/later-plugin.conflist")
	if after, found, err := conflist.After(later); err != nil || !found || !slices.Equal(after, []string{"other-mesh", conflist.Type}) {
		t.Errorf("After() = %q, %t, %v", after, found, err)
	}
	with, _, err := conflist.With(later, socket)
	if err != nil {
		t.Fatal(err)
	}
	if after, found, err := conflist.After(with); err != nil || !found || !slices.Equal(after, []string{"other-mesh"}) {
		t.Errorf("After() what was repaired = %q, %t, %v", after, found, err)
	}
	if _, found, err := conflist.After(read(t, "testdata/cilium.conflist")); err != nil || found {
		t.Errorf("After() without the plugin = %t, %v", found, err)
	}
}

func TestBadInput(t *testing.T) {
	for text, want := range map[string]string{
		``:                                     "parsing configuration",
		`{`:                                    "parsing configuration",
		`[]`:                                   "parsing configuration",
		`{"plugins":[{"type":"ptp"}]}`:         "no name",
		`{"name":"a"}`:                         "plugins: must have at least one",
		`{"name":"a","plugins":[]}`:            "no plugins in list",
		`{"name":"a","plugins":{}}`:            "invalid 'plugins' type",
		`{"name":"a","plugins":[{}]}`:          "missing 'type'",
		`{"name":"a","plugins":["ptp"]}`:       "parse plugin config",
		`{"name":"a","type":"ptp","plugins":1`: "parsing configuration",
	} {
		for what, err := range map[string]error{
			"With":    third(conflist.With([]byte(text), socket)),
			"Without": third(conflist.Without([]byte(text))),
			"After":   third(conflist.After([]byte(text))),
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s(%s) = %v, want %s", what, text, err, want)
			}
		}
	}
}

func third[A, B any](_ A, _ B, err error) error { return err }
