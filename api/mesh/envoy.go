package mesh

import (
	"strconv"
	"strings"
)

// The minor versions of Envoy 1 with which Sonde is tested. tools/envoy has a release of each of them; test/envoy checks that
// it has no others.
const (
	oldestEnvoy = 38
	newestEnvoy = 40
)

// SupportedEnvoys names the supported versions of Envoy, for people.
func SupportedEnvoys() string {
	return "1." + strconv.Itoa(oldestEnvoy) + " to 1." + strconv.Itoa(newestEnvoy)
}

// SupportsEnvoy reports whether a version of Envoy, such as "1.40.0", is a supported one. Others may work, or not.
func SupportsEnvoy(version string) bool {
	minor, ok := strings.CutPrefix(version, "1.")
	if !ok {
		return false
	}
	minor, _, _ = strings.Cut(minor, ".")
	n, err := strconv.Atoi(minor)
	return err == nil && n >= oldestEnvoy && n <= newestEnvoy
}
