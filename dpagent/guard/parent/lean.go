package parent

import (
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// leanPart begins the value of wire.Env in a guard that was started anew, and names what was added to its environment.
const leanPart = "guard"

// What the environment tells Go's runtime: it has to know before it starts, since it keeps memory for each processor of the node.
var (
	leanGuard  = []string{"GOGC=25", "GOMAXPROCS=1"}
	leanWorker = []string{"GOGC=25", "GOMAXPROCS=2"} // as in beLean of cmd/sonde-dp
)

// BeLean starts this program anew, in this process, with as little of Go's runtime as a guard needs, but for what the
// environment says. It returns if that is so already, or cannot be.
func BeLean(args, env []string) {
	if value(env, wire.Env) != "" {
		return
	}
	added := missing(env, leanGuard)
	if len(added) == 0 {
		return
	}
	part := []string{leanPart}
	for _, v := range added {
		name, _, _ := strings.Cut(v, "=")
		part = append(part, name)
	}
	env = slices.Concat(env, added, []string{wire.Env + "=" + strings.Join(part, " ")})
	_ = syscall.Exec(self(), args, env) //nolint:gosec // it is this program; where it fails, larger is not broken
}

// workerEnv takes away what BeLean has added, and tells the worker its part.
func workerEnv(env []string, part wire.Part) []string {
	added := strings.Fields(value(env, wire.Env))
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return name == wire.Env || slices.Contains(added, name)
	})
	return slices.Concat(env, missing(env, leanWorker), []string{wire.Env + "=" + part.String()})
}

func value(env []string, name string) string {
	for _, v := range env {
		if rest, ok := strings.CutPrefix(v, name+"="); ok {
			return rest
		}
	}
	return ""
}

// missing are those of wanted that env says nothing of.
func missing(env, wanted []string) []string {
	return slices.DeleteFunc(slices.Clone(wanted), func(w string) bool {
		name, _, _ := strings.Cut(w, "=")
		return value(env, name) != ""
	})
}

// self is the path of this program as it runs: if it was replaced on disk, a worker is still what its guard is.
func self() string {
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
