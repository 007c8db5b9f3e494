package redirect

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// programsVariable has the programs for the test process that is the pod.
const programsVariable = "SONDE_TEST_POD"

// sidecarUser is the user of everything in the pod but its callers.
const sidecarUser = 5678

// modes of the mesh, and who answers a host without a sidecar that calls the application.
var modes = map[string]string{"STRICT": "nobody", "PERMISSIVE": "web-1"}

// TestRedirection tries in each mode who reaches whom. It runs itself again for each, as the sidecar's user in a network
// namespace of its own, which is the pod.
func TestRedirection(t *testing.T) {
	slowtest.Skip(t, "real control planes and Envoys in network namespaces")
	text := os.Getenv(programsVariable)
	var programs harness.Programs
	if text != "" {
		must.Do(t, json.Unmarshal([]byte(text), &programs))
	} else if os.Geteuid() != 0 {
		redirecttest.NotHere(t, "this needs root, to make network namespaces: redirection was not tried with Envoy")
	} else {
		var err error
		programs, err = harness.Build(t.Context(), harness.Race)
		must.Do(t, err)
	}
	for mode, plain := range modes {
		t.Run(mode, func(t *testing.T) {
			if text != "" {
				tryInPod(t, programs, mode, plain)
			} else {
				startPod(t, programs, mode)
			}
		})
	}
}

// startPod runs the test of a mode in a pod.
func startPod(t *testing.T, programs harness.Programs, mode string) {
	text, err := json.Marshal(programs)
	must.Do(t, err)
	// Not by its path, which may lead through a directory that only root may enter.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.timeout=5m", "-test.run=^TestRedirection$/^"+mode+"$")
	cmd.Env = append(os.Environ(), programsVariable+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET,
		Credential: &syscall.Credential{Uid: sidecarUser, Gid: sidecarUser},
		// Devices, rules and the other machine; callers of other users; programs below a home directory that is root's.
		AmbientCaps: []uintptr{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN, unix.CAP_SETUID, unix.CAP_DAC_READ_SEARCH},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, fs.ErrPermission) {
		redirecttest.NotHere(t, "this needs root with all capabilities, to make network namespaces: redirection was not tried with Envoy: "+err.Error())
	}
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestRedirection/"+mode)) {
		t.Errorf("the test in the pod: %v", err)
	}
	t.Logf("%s", out)
}
