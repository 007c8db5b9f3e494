package chart_test

import (
	"flag"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/doctest"
	"github.com/sonde-mesh/sonde/test/chart"
)

var update = flag.Bool("update", false, "write the golden files in testdata")

// TestGolden renders the chart with each set of values in testdata: the diff shows an operator what an upgrade
// changes.
func TestGolden(t *testing.T) {
	sets, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(sets) < 5 {
		t.Errorf("only the values %q", sets)
	}
	for _, values := range sets {
		name, _ := strings.CutSuffix(values, ".values.yaml")
		t.Run(filepath.Base(name), func(t *testing.T) {
			text, err := chart.Text(t.Context(), "--values="+values)
			if err != nil {
				t.Fatal(err)
			}
			doctest.Golden(t, *update, name+".golden.yaml", text)
			if err := chart.Lint("--values=" + values); err != nil {
				t.Error(err)
			}
		})
	}
	golden, err := filepath.Glob("testdata/*.golden.yaml")
	if err != nil || len(golden) != len(sets) {
		t.Errorf("%q for %q: %v", golden, sets, err)
	}
}
