package envoy

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	meshapi "github.com/sonde-mesh/sonde/api/mesh"
)

// The versions that agents call supported are exactly the versions of the tests.
func TestSupportedVersions(t *testing.T) {
	var tested, supported []string
	for _, binary := range envoys(t) {
		out, err := run(t, t.TempDir(), binary, "--version")
		match := regexp.MustCompile(`/(1\.[0-9]+)\.[0-9]+/`).FindStringSubmatch(out)
		if err != nil || match == nil {
			t.Fatalf("%s prints no version: %v\n%s", binary, err, out)
		}
		tested = append(tested, match[1])
	}
	for minor := 99; minor >= 0; minor-- { // newest first, in the order of the tool
		if version := fmt.Sprint("1.", minor); meshapi.SupportsEnvoy(version + ".0") {
			supported = append(supported, version)
		}
	}
	if !slices.Equal(tested, supported) {
		t.Errorf("tested are %q, and supported are %q: change api/mesh/envoy.go or tools/envoy", tested, supported)
	}
}
