package machine

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// NetnsDir contains a file for each named network namespace.
const NetnsDir = "/run/netns"

// Run runs a program and returns its output. The error contains its stderr.
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

// Enter returns a command line that runs a command in a named network namespace, and in the namespaces of a directory
// (NewNamespaces) unless that is "". It does not use `ip netns exec`, which mounts a new /sys without the cgroups.
func Enter(namespace, directory string, command ...string) []string {
	enter := []string{"nsenter", "--net=" + filepath.Join(NetnsDir, namespace)}
	if directory != "" {
		enter = append(enter, "--uts="+filepath.Join(directory, utsFile), "--mount="+filepath.Join(directory, mountsFile))
	}
	return append(append(enter, "--"), command...)
}
