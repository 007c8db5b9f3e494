package machine

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// NetnsDir has a file for each named network namespace.
const NetnsDir = "/run/netns"

// Run runs a program and returns what it prints. The error has what it says.
func Run(ctx context.Context, stdin, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(append([]string{filepath.Base(program)}, args...), " "), err, strings.TrimSpace(problems.String()))
	}
	return string(out), nil
}

// Enter returns the command that runs a command on a named network namespace, and in the namespaces of a directory (NewNamespaces) unless that
// is "". It is not `ip netns exec`, which mounts a new /sys without the cgroups.
func Enter(namespace, directory string, command ...string) []string {
	enter := []string{"nsenter", "--net=" + filepath.Join(NetnsDir, namespace)}
	if directory != "" {
		enter = append(enter, "--uts="+filepath.Join(directory, utsFile), "--mount="+filepath.Join(directory, mountsFile))
	}
	return append(append(enter, "--"), command...)
}
