package parent

import (
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// guardRole is the value of wire.Env in a guard after Reexec.
const guardRole = "guard"

// runtimeEnv sets up Go's runtime for little memory. It has to be set before the process starts, since the runtime allocates
// memory for each processor of the node. With the default GOGC, garbage would grow to 4 MiB, several times the memory in
// use; and for a program that mostly waits, waking a second thread costs more than it gains.
var runtimeEnv = []string{"GOGC=50", "GOMAXPROCS=1"} // as in tuneRuntime of cmd/sonde-dp

// Reexec executes this program again, in the same process, with runtimeEnv, unless the environment sets these variables
// itself. It returns if that is done already, or fails.
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
	_ = syscall.Exec(selfPath(), args, env) //nolint:gosec // it is this program; if it fails, the process only takes more memory
}

// workerEnv returns the environment of a worker.
func workerEnv(env []string, role wire.Role) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, wire.Env+"=") })
	return append(env, wire.Env+"="+role.String())
}

func getenv(env []string, name string) string {
	for _, v := range env {
		if rest, ok := strings.CutPrefix(v, name+"="); ok {
			return rest
		}
	}
	return ""
}

// selfPath returns the path of the running program. If it was replaced on disk it is /proc/self/exe, so that a worker always
// has the same version as its guard.
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
	return path // gives the process its usual name
}
