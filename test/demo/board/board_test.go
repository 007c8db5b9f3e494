package board

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/pty"
)

// shown returns a board's output for a failed step with a wrong observation.
func shown(t *testing.T, to *os.File, from io.Reader) string {
	t.Helper()
	b := New(to)
	b.Step(context.Background(), "a step", func(context.Context) ([]string, error) {
		return []string{b.Wrong("Success (false)")}, errors.New("it fails")
	})
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	_, _ = all.ReadFrom(from) // reading from a closed terminal ends with an error
	return all.String()
}

func TestWhatIsWrongIsRed(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	screen, terminal := pty.Open(t)
	text := shown(t, terminal, screen)
	for _, want := range []string{"\x1b[31mFAILED\x1b[0m", "\x1b[31mSuccess (false)\x1b[0m", "\x1b[31mit fails\x1b[0m"} {
		if !strings.Contains(text, want) {
			t.Errorf("a terminal shows %q, without %q", text, want)
		}
	}
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if text := shown(t, to, from); strings.Contains(text, "\x1b") || !strings.Contains(text, "Success (false)") {
		t.Errorf("a file has %q, want no colours", text)
	}
}
