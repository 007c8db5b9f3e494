// Package printertest checks the output of commands.
package printertest

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// Names of usual length in a mesh on Kubernetes.
const (
	Pod     = "web-7d9c8b6f5-x2x7k"
	Proxy   = Pod + ".shop"
	Service = "web_shop_svc_80"
)

// heading matches the first line of a table.
var heading = regexp.MustCompile(`(?m)^[A-Z-]+( {3,}[A-Z-]+)+$`)

// Fits checks that a text has a table whose rows fit printer.Width. Notes may be longer.
func Fits(t *testing.T, text string) {
	t.Helper()
	at := heading.FindStringIndex(text)
	if at == nil {
		t.Fatalf("no table found:\n%s", text)
	}
	for line := range strings.Lines(text[at[0]:]) {
		row := strings.TrimSuffix(line, "\n")
		if n := utf8.RuneCountInString(row); n > printer.Width && !strings.HasPrefix(row, "  ") &&
			!strings.HasPrefix(row, "- ") {
			t.Errorf("a row has %d characters, want at most %d:\n%s", n, printer.Width, row)
		}
	}
}
