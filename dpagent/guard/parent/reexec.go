package parent

import (
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// guardRole is the value of wire.Env in a guard that was started anew.
const guardRole = "guard"

// runtimeEnv tells Go's runtime before it starts, since it keeps memory for each processor of the node. Go's own GOGC would let garbage grow
// to 4 MiB, several times what is in use; and for a program that waits, a second thread costs more to wake than it brings.
var runtimeEnv = []string{"GOGC=50", "GOMAXPROCS=1"} // as in beLean of cmd/sonde-dp

// Reexec starts this program anew, in this process, with as little of Go's runtime as a guard and its worker need, but for what the
// environment says. It returns if that is so already, or cannot be.
func Reexec(args, env []string) {
	if getenv(env, wire.Env) != "" {
		return
	}
	added := slices.DeleteFunc(slices.Clone(runtimeEnv), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return getenv(env, name) != ""
	})
	if len(added) == 0 {
		return
	}
	env = slices.Concat(env, added, []string{wire.Env + "=" + guardRole})
	_ = syscall.Exec(selfPath(), args, env) //nolint:gosec // it is this program; where it fails, larger is not broken
}

// workerEnv tells the worker its part.
func workerEnv(env []string, part wire.Role) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, wire.Env+"=") })
	return append(env, wire.Env+"="+part.String())
}

func getenv(env []string, name string) string {
	for _, v := range env {
		if rest, ok := strings.CutPrefix(v, name+"="); ok {
			return rest
		}
	}
	return ""
}

// selfPath is the path of this program as it runs: if it was replaced on disk, a worker is still what its guard is.
func selfPath() string {
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
	return path // for the sake of the process's name
}
