package chart_test

import (
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/chart"
)

// After an installation, Helm prints a command with the label of the release.
func TestNotes(t *testing.T) {
	tests := map[string]struct {
		flags []string
		label string
	}{
		"by default":    {nil, "kuma.io/sidecar-injection=enabled"},
		"beside a Kuma": {[]string{"--set=config.injection.kumaLabels=false"}, "sonde.dev/sidecar-injection=enabled"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			notes, err := chart.Notes(t.Context(), tc.flags...)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"sondectl check --installed\n", "sondectl check --nodes --nodes-image IMAGE", "kubectl label namespace NAMESPACE " + tc.label} {
				if !strings.Contains(notes, want) {
					t.Errorf("notes %q, want %q", notes, want)
				}
			}
		})
	}
}
