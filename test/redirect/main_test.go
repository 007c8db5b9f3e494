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

	"github.com/sonde-mesh/sonde/test/harness"
)

// programsVariable has the programs for the test process that is the pod.
const programsVariable = "SONDE_TEST_POD"

// sidecarUser is the user of everything in the pod but its callers.
const sidecarUser = 5678

// modes of the mesh, and who answers a host without a sidecar that calls the application.
var modes = map[string]string{"STRICT": "nobody", "PERMISSIVE": "web-1"}

// TestPod runs TestRedirection again for each mode, as the sidecar's user in a network namespace of its own, which is the pod.
func TestPod(t *testing.T) {
	if os.Getenv(programsVariable) != "" {
		t.Skip("this is the pod")
	}
	if os.Geteuid() != 0 {
		t.Skip("this needs root, to make network namespaces: redirection was not tried with Envoy")
	}
	programs, err := harness.Build(t.Context(), harness.Race)
	must(t, err)
	text, err := json.Marshal(programs)
	must(t, err)
	for mode := range modes {
		t.Run(mode, func(t *testing.T) {
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
				t.Skipf("this needs root with all capabilities, to make network namespaces: redirection was not tried with Envoy: %v", err)
			}
			if err != nil || !bytes.Contains(out, []byte("--- PASS: TestRedirection/"+mode)) {
				t.Errorf("the test in the pod: %v", err)
			}
			t.Logf("%s", out)
		})
	}
}

// programsOfPod returns the programs that TestPod has built. It skips the test outside of the pod.
func programsOfPod(t *testing.T) harness.Programs {
	t.Helper()
	text := os.Getenv(programsVariable)
	if text == "" {
		t.Skip("TestPod runs this")
	}
	var programs harness.Programs
	must(t, json.Unmarshal([]byte(text), &programs))
	return programs
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
