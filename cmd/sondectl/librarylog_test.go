package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr"
)

// TestLibraryLog logs like client-go.
func TestLibraryLog(t *testing.T) {
	var out bytes.Buffer
	log := logr.FromSlogHandler(newLibraryLog(&out))
	for _, l := range []logr.Logger{log, log.WithValues("pod", "web-1"), log.WithName("reflector")} {
		l.Error(fmt.Errorf("read body: %w", context.Canceled), "Unexpected error when reading response body")
	}
	if out.Len() > 0 {
		t.Errorf("of calls that were ended it says %q", out.String())
	}
	log.Error(errors.New("no route"), "Unexpected error when reading response body")
	log.Info("v1 Endpoints is deprecated")
	want := []string{`level=ERROR msg="Unexpected error when reading response body" err="no route"`, `level=INFO msg="v1 Endpoints is deprecated"`}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i := range max(len(lines), len(want)) {
		if i >= len(lines) || i >= len(want) || !strings.HasSuffix(lines[i], want[i]) {
			t.Fatalf("output %q, want %q", lines, want)
		}
	}
}
