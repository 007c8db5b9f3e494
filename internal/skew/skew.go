// Package skew decides whether the versions of an agent and a control plane are supported together (decision 059). An
// agent may be one minor version older than its control plane. A newer agent occurs while a control plane is rolled
// back.
package skew

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/semver"
)

// Skew is the relation of an agent's version to its control plane's.
type Skew int

// Unknown applies to builds without a version, such as "(devel)".
const (
	Unknown Skew = iota
	Supported
	// TooOld means more than one minor version older.
	TooOld
	// TooNew means a newer minor version.
	TooNew
)

// Of compares two versions in the form of internal/buildinfo. It ignores the patch version: v0.3.1 and v0.3.0 are
// equal, and so is v0.3.1-0.20261127000000-0123456789ab, Go's name for a build after v0.3.0. A build before the first
// tag, v0.0.0-…, has version v0.0. The version after the last one of a major version is .0 of the next.
func Of(agent, controlPlane string) Skew {
	a, ok := parse(agent)
	c, known := parse(controlPlane)
	switch {
	case !ok || !known:
		return Unknown
	case a.major > c.major, a.major == c.major && a.minor > c.minor:
		return TooNew
	case a.major == c.major && c.minor-a.minor <= 1, a.major+1 == c.major && c.minor == 0:
		return Supported
	default:
		return TooOld
	}
}

// Problem describes the problem; "" if the versions are supported together or unknown.
func Problem(agent, controlPlane string) string {
	switch Of(agent, controlPlane) {
	case TooOld:
		return fmt.Sprintf("agent %s is more than one minor version older than the control plane, %s: restart its workload to get the current agent", agent, controlPlane)
	case TooNew:
		return fmt.Sprintf("agent %s is newer than the control plane, %s: upgrade the control plane, or after a rollback restart the workload", agent, controlPlane)
	default:
		return ""
	}
}

type version struct{ major, minor int }

// parse reads "v0.3.1".
func parse(text string) (version, bool) {
	major, minor, _ := strings.Cut(strings.TrimPrefix(semver.MajorMinor(text), "v"), ".")
	a, errMajor := strconv.Atoi(major)
	b, errMinor := strconv.Atoi(minor)
	return version{a, b}, errMajor == nil && errMinor == nil
}
