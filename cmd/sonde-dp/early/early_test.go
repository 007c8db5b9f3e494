package early

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestNames(t *testing.T) {
	if tableVariable != mesh.EnvProbeTable {
		t.Errorf("the table is looked for in %s, the injector writes it to %s", tableVariable, mesh.EnvProbeTable)
	}
}

func TestWanted(t *testing.T) {
	const probes = `[{"httpGet":{"port":80}}]`
	tests := map[string]struct {
		args   string
		probes string
		want   bool
	}{
		"run":                       {"run --virtual-probes-port=9000", probes, true},
		"run, two words":            {"run --name x --virtual-probes-port 9000", probes, true},
		"run, default port":         {"run --name x", probes, true},
		"run, no port":              {"run --virtual-probes-port=0", probes, false},
		"run, no port, two words":   {"run --virtual-probes-port 0", probes, false},
		"run, the last one counts":  {"run --virtual-probes-port=0 --virtual-probes-port=9000", probes, true},
		"run, nothing to answer":    {"run --virtual-probes-port=9000", " [] ", false},
		"run, no table":             {"run --virtual-probes-port=9000", "", false},
		"run, a bad table":          {"run --virtual-probes-port=9000", "{", true},
		"probes":                    {"probes --virtual-probes-port=9000", probes, true},
		"probes, nothing to answer": {"probes --virtual-probes-port=9000", "", true},
		"probes, default port":      {"probes", probes, true},
		"wait":                      {"wait", probes, false},
		"help":                      {"--help", probes, false},
		"nothing":                   {"", probes, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"sonde-dp"}, strings.Fields(tc.args)...)
			if got := answersProbes(args, tc.probes); got != tc.want {
				t.Errorf("wanted(%q, %q) = %v, want %v", args, tc.probes, got, tc.want)
			}
		})
	}
}

// TestImports forbids imports that would make this package initialise late, because they need most of the program.
func TestImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for p := range strings.FieldsSeq(string(out)) {
		switch {
		case p == "net" || p == "fmt" || p == "encoding/json":
			t.Errorf("it stands on %s", p)
		case p == "github.com/sonde-mesh/sonde/shutdown": // has no variables to initialise
		case strings.Contains(p, ".") && !strings.HasPrefix(p, "github.com/sonde-mesh/sonde/dpagent/guard/") && !strings.HasSuffix(p, "/early"):
			t.Errorf("it stands on %s", p)
		}
	}
}
