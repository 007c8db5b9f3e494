package wire

import (
	"os"
	"slices"
	"strings"
)

// WithRole returns env with Env set to role.
func WithRole(env []string, role string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, Env+"=") })
	return append(env, Env+"="+role)
}

// Program returns the path of the running program. If the file was replaced on disk, it returns /proc/self/exe, so that
// a worker always has the same version as its guard.
func Program() string {
	const running = "/proc/self/exe"
	path, err := os.Executable()
	if err != nil {
		return running
	}
	now, err := os.Stat(running)
	if err != nil {
		return running
	}
	if there, err := os.Stat(path); err != nil || !os.SameFile(now, there) {
		return running
	}
	return path // gives the process its usual name
}
