package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// toolchainLine is the line of a go.mod that names the Go version for its build, which may be newer
// than the running Go.
var toolchainLine = regexp.MustCompile(`(?m)^toolchain (\S+)$`)

// BuildKubelet builds test/fidelity/kubelet/program with the kubelet's code of a version of test/fidelity/kubelets,
// such as 1.36, into the cache, and returns its path. Go downloads missing modules, and a newer Go if this
// Kubernetes version needs it.
func BuildKubelet(ctx context.Context, version string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory (set XDG_CACHE_HOME or HOME): %w", err)
	}
	path := filepath.Join(root, "test", "fidelity", "kubelets", "v"+strings.ReplaceAll(version, ".", "_")+".mod")
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("find the kubelet %s: %w", version, err)
	}
	env := []string{static}
	if toolchain := toolchainLine.FindSubmatch(text); toolchain != nil {
		env = append(env, "GOTOOLCHAIN="+string(toolchain[1]))
	}
	tags := "grpcnotrace"
	if minor, _ := strconv.Atoi(strings.TrimPrefix(version, "1.")); minor < 36 {
		tags += ",before136" // the prober has other signatures before 1.36
	}
	program := filepath.Join(cache, "sonde", "kubelets", version, "kubelet")
	args := []string{
		"build", "-trimpath", "-tags", tags, "-ldflags", "-s -w", "-modfile", path,
		"-o", program, "./fidelity/kubelet/program",
	}
	if _, err := goCommand(ctx, filepath.Join(root, "test"), env, args...); err != nil {
		return "", fmt.Errorf("build the kubelet %s: %w", version, err)
	}
	return program, nil
}
