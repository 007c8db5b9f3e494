package logging_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"regexp"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/logging"
	"github.com/sonde-mesh/sonde/internal/testing/pty"
)

func TestText(t *testing.T) {
	var out bytes.Buffer
	logging.New(&out, slog.LevelInfo, logging.Text).Warn("failed to join", "proxy", "web-1", "after", 90*time.Second,
		"err", errors.New("a\x1b[31m\nb"))
	want := regexp.MustCompile(`^time=\S+ level=WARN msg="failed to join" proxy=web-1 after=1m30s err="a\\x1b\[31m\\nb"\n$`)
	if !want.Match(out.Bytes()) {
		t.Errorf("line = %q", &out)
	}
}

// TestTextIsLimited checks that outsiders cannot fill a text log either.
func TestTextIsLimited(t *testing.T) {
	var out bytes.Buffer
	log := logging.New(&out, slog.LevelInfo, logging.Text)
	for range 100 {
		log.Warn("refused", "peer", "10.0.0.1")
	}
	if n := bytes.Count(out.Bytes(), []byte("\n")); n != 20 {
		t.Errorf("%d lines, want 20", n)
	}
}

func TestFormatOfAnOutput(t *testing.T) {
	_, screen := pty.Open(t)
	tests := map[string]struct {
		format logging.Format
		to     io.Writer
		want   logging.Format
	}{
		"a terminal":           {logging.Auto, screen, logging.Text},
		"a file":               {logging.Auto, &bytes.Buffer{}, logging.JSON},
		"JSON on a terminal":   {logging.JSON, screen, logging.JSON},
		"text that is no file": {logging.Text, &bytes.Buffer{}, logging.Text},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tc.format.For(tc.to); got != tc.want {
				t.Errorf("For() = %q, want %q", got, tc.want)
			}
		})
	}
}
