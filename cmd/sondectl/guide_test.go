package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
)

// TestMigrationGuide runs the guide's commands that need no cluster, and compares their output.
func TestMigrationGuide(t *testing.T) {
	t.Chdir("../..") // working directory of the guide's commands
	guide, err := os.ReadFile("docs/guides/migrate.md")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for i, block := range strings.Split(string(guide), "```") {
		command, want, found := strings.Cut(strings.TrimPrefix(block, "\n$ bin/sondectl "), "\n")
		if i%2 == 0 || !found || !strings.HasPrefix(block, "\n$ bin/sondectl ") {
			continue
		}
		tried++
		t.Run(command, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := (&cli{}).run(t.Context(), strings.Fields(command), strings.NewReader(""), &stdout, &stderr); code != exit.Findings {
				t.Errorf("exit code %d, want %d: %s", code, exit.Findings, stderr.String())
			}
			if stdout.String() != want {
				t.Errorf("it prints:\n%s\nand the guide has:\n%s", stdout.String(), want)
			}
		})
	}
	if tried != 4 {
		t.Errorf("%d commands were tried, want 4", tried)
	}
}
