package skew_test

import (
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/internal/skew"
)

func TestOf(t *testing.T) {
	const before = "v0.0.0-20261127005201-94c0d452b026"
	tests := map[string]struct {
		agent, controlPlane string
		want                skew.Skew
	}{
		"the same":                          {"v0.3.0", "v0.3.0", skew.Supported},
		"another patch":                     {"v0.3.9", "v0.3.0", skew.Supported},
		"one minor older":                   {"v0.2.7", "v0.3.0", skew.Supported},
		"two minors older":                  {"v0.1.9", "v0.3.0", skew.TooOld},
		"newer":                             {"v0.4.0", "v0.3.9", skew.TooNew},
		"a build after a tag":               {"v0.2.1-0.20261127000000-0123456789ab", "v0.3.0", skew.Supported},
		"with changes":                      {"v0.3.0+dirty", "v0.3.0", skew.Supported},
		"a candidate":                       {"v0.2.0", "v0.3.0-rc.1", skew.Supported},
		"builds before the first tag":       {before, "v0.0.0-20270101000000-0123456789ab", skew.Supported},
		"the first tag":                     {before, "v0.1.0", skew.Supported},
		"long before":                       {before, "v0.2.0", skew.TooOld},
		"an older major":                    {"v0.9.0", "v1.0.0", skew.Supported},
		"an older major, not its successor": {"v0.9.0", "v1.1.0", skew.TooOld},
		"a newer major":                     {"v1.0.0", "v0.9.0", skew.TooNew},
		"10 is more than 9":                 {"v0.9.0", "v0.10.0", skew.Supported},
		"an agent without a version":        {"(devel)", "v0.3.0", skew.Unknown},
		"nothing":                           {"", "v0.3.0", skew.Unknown},
		"a control plane without one":       {"v0.3.0", "unknown", skew.Unknown},
		"no version at all":                 {"v0.x", "v0.3.0", skew.Unknown},
		"far too long":                      {"v0." + strings.Repeat("9", 40) + ".0", "v0.3.0", skew.Unknown},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := skew.Of(tc.agent, tc.controlPlane); got != tc.want {
				t.Errorf("Of() = %d, want %d", got, tc.want)
			}
			problem := skew.Problem(tc.agent, tc.controlPlane)
			if wrong := tc.want == skew.TooOld || tc.want == skew.TooNew; wrong != (problem != "") || wrong && (!strings.Contains(problem, tc.agent) || !strings.Contains(problem, tc.controlPlane)) {
				t.Errorf("Problem() = %q", problem)
			}
		})
	}
}
