package upgrade

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/apiserver"
	"github.com/sonde-mesh/sonde/test/harness"
)

// cluster is an API server for all tests of this package.
var cluster *apiserver.Cluster

func TestMain(m *testing.M) {
	slowtest.SkipAll(m, "the release before is built, and a real API server runs")
	os.Exit(apiserver.Run(m, &cluster))
}

// required is the variable that makes the previous release mandatory.
const required = "SONDE_TEST_PREVIOUS"

// exitMissing is the exit code of tools/previous if the git history lacks the previous release.
const exitMissing = 3

// releases returns the programs of this and of the previous release. If the previous release cannot be built, it
// skips the test, or fails it if the previous release is required.
func releases(t *testing.T) (now, before harness.Programs) {
	t.Helper()
	now, err := harness.Build(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(previous(t), "bin")
	before = now // with the same application and Envoy
	before.ControlPlane, before.Agent, before.Ctl = filepath.Join(bin, "sonde-cp"), filepath.Join(bin, "sonde-dp"), filepath.Join(bin, "sondectl")
	return now, before
}

// previous returns the directory of the previous release.
func previous(t *testing.T) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	program, err := harness.BuildInto(t.Context(), t.TempDir(), "tools/previous") // go run would hide its exit code
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, "--repository="+root)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == exitMissing && os.Getenv(required) != "required" {
		t.Skip(said.String())
	}
	if err != nil {
		t.Fatalf("%v: %s", err, &said)
	}
	return strings.TrimSpace(string(out))
}
