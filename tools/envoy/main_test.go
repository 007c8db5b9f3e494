package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// envProgram makes the test binary run the program.
const envProgram = "TEST_IS_ENVOY_GETTER"

func TestMain(m *testing.M) {
	if os.Getenv(envProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// cacheAll creates a cache with all releases, without another Envoy. It returns their paths, one per line.
func cacheAll(t *testing.T) string {
	t.Helper()
	onPath(t, nil)
	t.Setenv("ENVOY", "")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	var all strings.Builder
	for _, r := range releases {
		directory := filepath.Join(os.Getenv("XDG_CACHE_HOME"), "sonde", "envoy-"+r.version)
		if err := os.MkdirAll(directory, 0o700); err != nil {
			t.Fatal(err)
		}
		all.WriteString(writeScript(t, directory, "envoy", fakeEnvoy(r.version)) + "\n")
	}
	return all.String()
}

// writes stores the data of each Write.
type writes []string

func (w *writes) Write(p []byte) (int, error) {
	*w = append(*w, string(p))
	return len(p), nil
}

// TestAllAtOnce shows that the reader of a pipe, such as head -1, gets the first path only when all are available.
func TestAllAtOnce(t *testing.T) {
	want := writes{cacheAll(t)}
	var got writes
	if err := run(t.Context(), []string{"--all"}, &got, &got); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("writes = %q, want %q", got, want)
	}
}

func TestReaderIsGone(t *testing.T) {
	cacheAll(t)
	t.Setenv(envProgram, "1")
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "--all")
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = writer, &stderr
	if err := cmd.Run(); err != nil || stderr.Len() > 0 {
		t.Errorf("Run() = %v, stderr %q, want neither", err, &stderr)
	}
	if err := writer.Close(); err != nil {
		t.Error(err)
	}
}
