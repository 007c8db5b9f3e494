package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// TestDemo runs the demo: each of its steps is checked.
func TestDemo(t *testing.T) {
	slowtest.Skip(t, "real Envoys run")
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	if err := run(wait.Context(t), nil, out); err != nil {
		text, _ := os.ReadFile(out.Name())
		t.Errorf("%v\n%s", err, text)
	}
}
