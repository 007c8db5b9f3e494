package binaries

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Version is a version of Kubernetes to build, such as 1.37.2, or with a patch of its kubelet:
// 1.37.2+probe-error-as-failure. "" is DefaultVersion.
type Version string

// DefaultVersion is the default version of a cluster.
const DefaultVersion Version = "1.37.2"

// releases are the tested releases, the newest first.
var releases = []string{string(DefaultVersion), "1.36.3"}

// patch changes one file of a component's module.
type patch struct {
	file string
	// old is a text that occurs once in the file. The patch replaces it by new.
	old, new string
}

// patches of the kubelet, by the suffix after "+" in a Version.
var patches = map[string]patch{
	// The effect of the gate ProbeErrorAsFailure of kubernetes#139872, which no release has: errored probes count as
	// failures.
	"probe-error-as-failure": {
		file: "pkg/kubelet/prober/worker.go",
		old:  "if err != nil {\n\t\t// Prober error, throw away the result.",
		new:  "if err != nil && result != results.Failure {\n\t\t// Prober error, throw away the result.",
	},
}

// Releases returns the releases that can be built, the newest first.
func Releases() []string { return slices.Clone(releases) }

// Patches returns the sorted names of patches, which follow the "+" in a Version.
func Patches() []string { return slices.Sorted(maps.Keys(patches)) }

// ParseVersion parses a Version. The error lists the supported ones.
func ParseVersion(text string) (Version, error) {
	release, name, patched := strings.Cut(text, "+")
	_, known := patches[name]
	if !slices.Contains(releases, release) || patched && !known {
		return "", fmt.Errorf("version %q of Kubernetes: choose of %s, with +%s or without", text, strings.Join(releases, ", "), strings.Join(Patches(), " or +"))
	}
	return Version(text), nil
}

// String returns the version, such as 1.37.2.
func (v Version) String() string {
	if v == "" {
		return string(DefaultVersion)
	}
	return string(v)
}

// Minor returns 37 of 1.37.2.
func (v Version) Minor() int {
	minor, _ := strconv.Atoi(strings.Split(v.release(), ".")[1]) // ParseVersion has checked the version
	return minor
}

// release returns the version without a patch.
func (v Version) release() string {
	release, _, _ := strings.Cut(v.String(), "+")
	return release
}

// patch returns the version's patch, or nil.
func (v Version) patch() *patch {
	_, name, ok := strings.Cut(v.String(), "+")
	if !ok {
		return nil
	}
	p := patches[name]
	return &p
}

// apply applies the patch to a file's text.
func (p *patch) apply(text string) (string, error) {
	if n := strings.Count(text, p.old); n != 1 {
		return "", fmt.Errorf("patch %s: found the text to replace %d times, want once:\n%s", p.file, n, p.old)
	}
	return strings.Replace(text, p.old, p.new, 1), nil
}
