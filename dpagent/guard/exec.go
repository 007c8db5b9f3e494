package guard

import (
	"os"
	"strings"
	"syscall"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// runtimeEnv makes Go's runtime use little memory. It has to be set before the process starts, since the runtime
// allocates memory for each processor of the node. With the default GOGC, garbage would grow to 4 MiB, several times
// the memory in use. For a program that mostly waits, waking a second thread costs more than it gains.
var runtimeEnv = []string{"GOGC=40", "GOMAXPROCS=1"} // as in tuneRuntime of cmd/sonde-dp

// Exec replaces this process with a guard, whose worker runs this program with the same arguments. Exec only returns on
// failure. The worker gets runtimeEnv, too, unless env sets these variables.
func Exec(args, env []string) error {
	env = wire.WithRole(env, wire.Guard)
	for _, v := range runtimeEnv {
		name, _, _ := strings.Cut(v, "=")
		if getenv(env, name) == "" {
			env = append(env, v)
		}
	}
	return os.NewSyscallError("execve", syscall.Exec(wire.Program(), args, env)) //nolint:gosec // this program
}

// init runs the guard or becomes a kept process, if this process has that role. It runs before Go initialises the
// packages that only a worker needs: their tables and types would take twice the memory of the guard itself.
func init() {
	switch role := os.Getenv(wire.Env); {
	case role == wire.Guard:
		os.Exit(run())
	case strings.HasPrefix(role, wire.Keep):
		os.Exit(becomeKept(strings.TrimPrefix(role, wire.Keep)))
	}
}

func getenv(env []string, name string) string {
	for _, v := range env {
		if rest, ok := strings.CutPrefix(v, name+"="); ok {
			return rest
		}
	}
	return ""
}
