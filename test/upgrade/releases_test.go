package upgrade

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sonde-mesh/sonde/internal/slowtest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/kube"
)

// cluster is an API server for all tests of this package.
var cluster *kube.Cluster

func TestMain(m *testing.M) {
	slowtest.SkipAll(m, "the release before is built, and a real API server runs")
	os.Exit(kube.Run(m, &cluster))
}

// required is the variable with which the release before must be there.
const required = "SONDE_TEST_PREVIOUS"

// exitMissing is the exit code of tools/previous if this history does not have it.
const exitMissing = 3

// missing is what tools/previous says of a history that does not have it.
type missing string

func (m missing) Error() string { return string(m) }

type programs struct{ now, before harness.Programs }

// releases returns the programs of this release, and of the one before. Where that cannot be built, it skips the test, or fails it if it is required.
func releases(t *testing.T) (now, before harness.Programs) {
	t.Helper()
	built, err := build()
	if m, ok := errors.AsType[missing](err); ok && os.Getenv(required) != "required" {
		t.Skip(string(m))
	}
	if err != nil {
		t.Fatal(err)
	}
	return built.now, built.before
}

// build builds both once for all tests.
var build = sync.OnceValues(func() (programs, error) {
	now, err := harness.Build(context.Background(), false)
	if err != nil {
		return programs{}, err
	}
	directory, err := previous()
	if err != nil {
		return programs{}, fmt.Errorf("build the release before: %w", err)
	}
	bin := filepath.Join(directory, "bin")
	before := now // the application and Envoy are the same
	before.ControlPlane, before.Agent, before.Ctl = filepath.Join(bin, "sonde-cp"), filepath.Join(bin, "sonde-dp"), filepath.Join(bin, "sondectl")
	return programs{now, before}, nil
})

// previous returns the directory of the release before.
func previous() (string, error) {
	root, err := harness.Root()
	if err != nil {
		return "", err
	}
	bin, err := os.MkdirTemp("", "sonde-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(bin) }()                                       // it is a temporary directory
	program, err := harness.BuildInto(context.Background(), bin, "tools/previous") // `go run` would hide its exit code
	if err != nil {
		return "", err
	}
	var said bytes.Buffer
	cmd := exec.Command(program, "--repository="+root)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == exitMissing {
		return "", missing(said.String())
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, &said)
	}
	return strings.TrimSpace(string(out)), nil
}
