package main

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/controller/freeze"
)

// TestFollowFreezeMode changes the freeze mode while the program runs.
func TestFollowFreezeMode(t *testing.T) {
	const base = "store: kubernetes\n"
	synctest.Test(t, func(t *testing.T) {
		passed, log := followed(t, noticed, nil, []string{base, base + "freeze: {mode: dryRun}\n", base + "freeze: {mode: none}\n", base + "freeze: {mode: 'off'}\n", base})
		var got []freeze.Mode
		for _, l := range passed {
			got = append(got, l.FreezeMode)
		}
		if diff := cmp.Diff([]freeze.Mode{freeze.DryRun, freeze.Off, freeze.Enforce}, got); diff != "" {
			t.Errorf("applied settings (-want +got):\n%s", diff)
		}
		for _, text := range []string{"key=freeze.mode before=enforce value=dryRun", `freeze.mode: \"none\": must be enforce, dryRun or off`} {
			if strings.Count(log, text) != 1 {
				t.Errorf("the log does not contain %q exactly once:\n%s", text, log)
			}
		}
	})
}
