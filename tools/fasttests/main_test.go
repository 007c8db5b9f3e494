package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// repository writes a repository of one module and returns its top directory.
func repository(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	files["go.mod"] = "module example.com/m\n\ngo 1.26\n"
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	pause    = "func Pause() { time.Sleep(1) }\n"
	imports  = "import (\n\t\"testing\"\n\t\"time\"\n)\n"
	sleeping = "import \"time\"\n" + pause
)

func TestRun(t *testing.T) {
	root := repository(t, map[string]string{
		"test/fast.txt":               "listed  asks the kernel\n",
		"fast/fast_test.go":           "package fast\n" + imports + "func TestSleep(t *testing.T) { time.Sleep(1) }\n",
		"listed/listed_test.go":       "package listed\n" + imports + "func TestSleep(t *testing.T) { time.Sleep(1) }\n",
		"test/real/kube/kube_test.go": "package kube\n" + imports + "func TestSleep(t *testing.T) { time.Sleep(1) }\n",
		"across/across.go":            "package across\n",
		"across/export_test.go":       "package across\n" + sleeping,
		"across/across_test.go":       "package across_test\nimport (\n\t\"testing\"\n\t\"example.com/m/across\"\n)\nfunc TestPause(t *testing.T) { across.Pause() }\n",
	})
	var out bytes.Buffer
	err := run([]string{"--root", root, "."}, &out)
	want := `across/across_test.go:6:39: TestPause calls Pause (time.Sleep) outside a bubble: run it in synctest.Test or virtual.Run, or move the test to test/real
fast/fast_test.go:6:37: TestSleep calls time.Sleep outside a bubble: run it in synctest.Test or virtual.Run, or move the test to test/real
`
	if out.String() != want || err == nil || err.Error() != "2 uses of sockets, processes and clocks in 2 fast packages" {
		t.Errorf("run() = %v, output\n%s\nwant\n%s", err, &out, want)
	}
	out.Reset()
	if err := run([]string{"--root", root, "--counts", "."}, &out); err == nil || out.String() != "    1 across\n    1 fast\n" {
		t.Errorf("run(--counts) = %v, output\n%s", err, &out)
	}
}

func TestRunFindsNothing(t *testing.T) {
	files := map[string]string{
		"test/fast.txt": "", "fast/fast_test.go": "package fast\nimport \"testing\"\nfunc TestFast(t *testing.T) {}\n",
	}
	var out bytes.Buffer
	if err := run([]string{"--root", repository(t, files), "."}, &out); err != nil || out.Len() > 0 {
		t.Errorf("run() = %v, output %s", err, &out)
	}
	files["test/fast.txt"] = "gone  no reason holds\n"
	err := run([]string{"--root", repository(t, files), "."}, &out)
	if err == nil || !strings.Contains(err.Error(), "test/fast.txt:1: no package in gone") {
		t.Errorf("run() = %v, want that the list names no package", err)
	}
	files["fast/fast_test.go"] = "package fast\nvar x int = \"\"\n"
	if err := run([]string{"--root", repository(t, files), "."}, &out); err == nil || !strings.Contains(err.Error(), "load example.com/m/fast") {
		t.Errorf("run() = %v, want that the package is broken", err)
	}
}
