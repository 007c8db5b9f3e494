package mesh

import (
	"strconv"
	"strings"
)

// The minor versions of Envoy 1 with which Sonde is tested. tools/envoy has a release of each; test/real/envoy checks
// that it has no others.
const (
	oldestEnvoy = 38
	newestEnvoy = 40
)

// SupportedEnvoys names the supported versions of Envoy in a sentence.
func SupportedEnvoys() string {
	return "1." + strconv.Itoa(oldestEnvoy) + " to 1." + strconv.Itoa(newestEnvoy)
}

// SupportsEnvoy reports whether a version of Envoy, such as "1.40.0", is supported. Others may or may not work.
func SupportsEnvoy(version string) bool {
	minor, ok := strings.CutPrefix(version, "1.")
	if !ok {
		return false
	}
	minor, _, _ = strings.Cut(minor, ".")
	n, err := strconv.Atoi(minor)
	return err == nil && n >= oldestEnvoy && n <= newestEnvoy
}

// EnvoyView is a page of information from an Envoy.
type EnvoyView string

// Views of an Envoy. Each is a page of its admin interface.
const (
	// ViewConfigDump is Envoy's whole configuration, JSON without secrets.
	ViewConfigDump EnvoyView = "config-dump"
	// ViewStats are all statistics.
	ViewStats EnvoyView = "stats"
	// ViewClusters are the clusters and their endpoints, as Envoy sees them now.
	ViewClusters EnvoyView = "clusters"
	// ViewListeners are the listeners that are active, and their addresses, JSON.
	ViewListeners EnvoyView = "active-listeners"
	// ViewCertificates are the certificates that Envoy presents and trusts, JSON without keys.
	ViewCertificates EnvoyView = "certificates"
	// ViewLogging are the levels of the loggers.
	ViewLogging EnvoyView = "logging"
)

// EnvoyViews lists the views.
func EnvoyViews() []EnvoyView {
	return []EnvoyView{ViewConfigDump, ViewStats, ViewClusters, ViewListeners, ViewCertificates, ViewLogging}
}
