// Package harness runs Sonde's programs on one machine, for tests and for the demo: a control plane, and proxies that
// each have an application, an agent and an Envoy. All processes that it starts end with it.
package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const rootModule = "module github.com/sonde-mesh/sonde\n"

// Programs has the paths of the programs that a Machine runs.
type Programs struct {
	ControlPlane, Agent, Ctl string
	// App is the application of test/app.
	App string
	// Envoy is the binary that agents run.
	Envoy string
}

// Root returns the root directory of the repository, which contains the working directory.
func Root() (string, error) {
	directory, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		data, err := os.ReadFile(filepath.Join(directory, "go.mod"))
		if err == nil && bytes.HasPrefix(data, []byte(rootModule)) {
			return directory, nil
		}
		if parent := filepath.Dir(directory); parent != directory {
			directory = parent
			continue
		}
		return "", errors.New("find the repository: run this inside of it")
	}
}

// Build builds all programs into bin, or into bin/race with the race detector, and finds or downloads Envoy. It does
// not rebuild programs that are up to date.
func Build(ctx context.Context, race bool) (Programs, error) {
	root, err := Root()
	if err != nil {
		return Programs{}, err
	}
	bin := filepath.Join(root, "bin")
	args, env := asReleased, []string{static}
	if race { // the flags of the Makefile's tests, so that shared packages compile once
		bin, args, env = filepath.Join(bin, "race"), slices.Concat(build, []string{"-race"}), []string{"CGO_ENABLED=1"}
	}
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return Programs{}, err
	}
	// Go tests several packages at once: without the lock, a build could replace a program that
	// another test runs.
	lock, err := os.Open(bin)
	if err != nil {
		return Programs{}, err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return Programs{}, fmt.Errorf("wait for other builds: %w", err)
	}
	p := programsIn(bin)
	if _, err := goCommand(ctx, root, env, slices.Concat(args, []string{"-o", bin + "/", "./cmd/..."})...); err != nil {
		return Programs{}, fmt.Errorf("build the programs: %w", err)
	}
	app := slices.Concat(args, []string{"-o", p.App, "./app"})
	if _, err := goCommand(ctx, filepath.Join(root, "test"), env, app...); err != nil {
		return Programs{}, fmt.Errorf("build the application: %w", err)
	}
	envoys, err := Envoys(ctx, "")
	if err != nil {
		return Programs{}, err
	}
	p.Envoy = envoys[0]
	return p, nil
}

func programsIn(bin string) Programs {
	return Programs{
		ControlPlane: filepath.Join(bin, "sonde-cp"),
		Agent:        filepath.Join(bin, "sonde-dp"),
		Ctl:          filepath.Join(bin, "sondectl"),
		App:          filepath.Join(bin, "test-app"),
	}
}

// Built returns the programs that tools/prepare has built into bin, without Envoy.
func Built() (Programs, error) {
	root, err := Root()
	return programsIn(filepath.Join(root, "bin")), err
}

// build has the arguments of go build, as in the Makefile. A release is built with asReleased, and with static in the
// environment.
var (
	build      = []string{"build", "-trimpath", "-tags", "grpcnotrace"}
	asReleased = slices.Concat(build, []string{"-ldflags", "-s -w"})
)

const static = "CGO_ENABLED=0"

// BuildInto builds a main package of the repository, such as cmd/sonde-dp, test/app or tools/previous, into a
// directory, as the Makefile does. It returns the path of the program.
func BuildInto(ctx context.Context, directory, path string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return "", err
	}
	program, module := filepath.Join(directory, filepath.Base(path)), root
	if of, inModule, _ := strings.Cut(path, "/"); of == "test" || of == "tools" {
		module, path = filepath.Join(root, of), inModule
	}
	args := slices.Concat(asReleased, []string{"-o", program, "./" + path})
	if _, err := goCommand(ctx, module, []string{static}, args...); err != nil {
		return "", fmt.Errorf("build %s: %w", path, err)
	}
	return program, nil
}

// Envoys returns the path of an Envoy of a version such as 1.36.2, or of a minor version. "" means any supported
// version; "all" means one Envoy of each supported minor version, newest first.
func Envoys(ctx context.Context, version string) ([]string, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	args := []string{"run", "./envoy"}
	switch version {
	case "":
	case "all":
		args = append(args, "--all")
	default:
		args = append(args, "--version", version)
	}
	out, err := goCommand(ctx, filepath.Join(root, "tools"), []string{static}, args...)
	if err != nil {
		return nil, fmt.Errorf("find Envoy: %w", err)
	}
	return strings.Fields(out), nil
}

// EnvoysOfTests returns the newest supported Envoy; with SONDE_TEST_ENVOYS=all, it returns one of each supported
// minor version.
func EnvoysOfTests(ctx context.Context) ([]string, error) {
	return Envoys(ctx, os.Getenv("SONDE_TEST_ENVOYS"))
}

func goCommand(ctx context.Context, directory string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = directory, append(os.Environ(), env...)
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}
