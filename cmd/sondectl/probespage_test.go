package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
)

// TestProbesPage compares the excerpts of docs/probes.md about one pod with the file and with the commands' output.
func TestProbesPage(t *testing.T) {
	t.Chdir("../..") // working directory of the page's commands
	const example = "docs/examples/web.yaml"
	written, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("docs/probes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## The probes of one pod, before and after\n")
	section, _, _ = strings.Cut(section, "\n## ")
	parts := strings.Split(section, "```")
	if !found || len(parts) != 7 {
		t.Fatalf("docs/probes.md has %d blocks in its section on one pod, want 3", len(parts)/2)
	}
	output := func(args ...string) string {
		var stdout, stderr bytes.Buffer
		if code := (&cli{}).run(t.Context(), args, strings.NewReader(""), &stdout, &stderr); code != exit.OK || stderr.Len() > 0 {
			t.Fatalf("sondectl %s: exit code %d, %s", strings.Join(args, " "), code, stderr.String())
		}
		return stdout.String()
	}
	before, after, table := strings.TrimPrefix(parts[1], "yaml\n"), strings.TrimPrefix(parts[3], "yaml\n"), parts[5]
	const second = "      readinessProbe:\n"
	one, two, _ := strings.Cut(before, second) // the excerpt omits the text between the two
	if !strings.Contains(string(written), one) || !strings.Contains(string(written), second+two) {
		t.Errorf("%s does not have:\n%s", example, before)
	}
	if got := output("inject", "-f", example); !strings.Contains(got, after) {
		t.Errorf("sondectl inject prints:\n%s\nwhich does not have:\n%s", got, after)
	}
	want := "\n$ bin/sondectl probes explain -f " + example + "\n" + output("probes", "explain", "-f", example)
	if table != want {
		t.Errorf("sondectl probes explain prints:\n%s\nand docs/probes.md has:\n%s", want, table)
	}
}
