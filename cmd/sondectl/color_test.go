package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/pty"
)

// TestColoursOnTerminals runs a command that writes one yellow word on a terminal.
func TestColoursOnTerminals(t *testing.T) {
	const painted, plain = "\r\n\x1b[33m- warning:\x1b[0m metadata", "\r\n- warning: metadata"
	for name, tc := range map[string]struct {
		flag, noColor, term, want string
	}{
		"as it is":            {"--color=auto", "", "xterm", painted},
		"NO_COLOR":            {"--color=auto", "1", "xterm", plain},
		"a terminal of lines": {"--color=auto", "", "dumb", plain},
		"never":               {"--color=never", "", "xterm", plain},
		"always":              {"--color=always", "1", "dumb", painted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NO_COLOR", tc.noColor)
			t.Setenv("TERM", tc.term)
			screen, terminal := pty.Open(t)
			var stderr bytes.Buffer
			args := []string{"migrate", "plan", "-f", "../../docs/examples/migrate/kuma-probe-proxy.yaml", "--kuma-labels=false", tc.flag}
			(&cli{}).run(context.Background(), args, strings.NewReader(""), terminal, &stderr)
			if err := terminal.Close(); err != nil { // otherwise, reading from the terminal would block without text
				t.Fatal(err)
			}
			shown := make([]byte, 1<<16)
			n, err := screen.Read(shown)
			if err != nil || !bytes.Contains(shown[:n], []byte(tc.want)) {
				t.Errorf("the terminal shows, error %v, stderr %q:\n%q\nwant %q", err, &stderr, shown[:n], tc.want)
			}
		})
	}
}
