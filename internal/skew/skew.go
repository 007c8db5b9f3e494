// Package skew says whether an agent and a control plane are of versions that are supported together (decision 059): an agent may be one minor version older
// than its control plane. A newer one is there while a control plane is rolled back.
package skew

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/semver"
)

// Skew is how the version of an agent relates to that of its control plane.
type Skew int

// Unknown is that of builds without a version, such as "(devel)", of which nothing is said.
const (
	Unknown Skew = iota
	Supported
	// TooOld: more than one minor version older.
	TooOld
	// TooNew: of a newer minor version.
	TooNew
)

// Of compares two versions as internal/buildinfo has them. Only major and minor count: v0.3.1 and v0.3.0 are the same, and so is what Go calls a build after
// v0.3.0, v0.3.1-0.20261127000000-0123456789ab. A build before the first tag, v0.0.0-…, is of v0.0. The version after the last one of a major version is .0 of
// the next.
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

// Problem says in words what is wrong, "" if nothing is, or nothing can be said.
func Problem(agent, controlPlane string) string {
	switch Of(agent, controlPlane) {
	case TooOld:
		return fmt.Sprintf("agent %s is more than one minor version older than the control plane, %s: restart its workload, which brings the agent of now", agent, controlPlane)
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
