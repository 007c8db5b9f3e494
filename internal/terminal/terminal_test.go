package terminal_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/sonde-mesh/sonde/internal/terminal"
	"github.com/sonde-mesh/sonde/internal/testing/pty"
)

func TestHasColours(t *testing.T) {
	_, screen := pty.Open(t)
	pipe, _, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull) // a character device, too
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		output        any
		noColor, term string
		is, colours   bool
	}{
		"a terminal":               {output: screen, term: "xterm", is: true, colours: true},
		"NO_COLOR":                 {output: screen, term: "xterm", noColor: "1", is: true},
		"NO_COLOR, whatever it is": {output: screen, term: "xterm", noColor: "0", is: true},
		"a dumb terminal":          {output: screen, term: "dumb", is: true},
		"a pipe":                   {output: pipe, term: "xterm"},
		"/dev/null":                {output: null, term: "xterm"},
		"a buffer":                 {output: &bytes.Buffer{}, term: "xterm"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NO_COLOR", tc.noColor)
			t.Setenv("TERM", tc.term)
			if is, colours := terminal.Is(tc.output), terminal.HasColours(tc.output); is != tc.is || colours != tc.colours {
				t.Errorf("Is() = %v, HasColours() = %v, want %v, %v", is, colours, tc.is, tc.colours)
			}
		})
	}
}

func TestPaint(t *testing.T) {
	if got, want := terminal.Red.Paint("lost"), "\x1b[31mlost\x1b[0m"; got != want {
		t.Errorf("Paint() = %q, want %q", got, want)
	}
	if got := terminal.Plain.Paint("lost"); got != "lost" {
		t.Errorf("Paint() = %q, want no colour", got)
	}
}
