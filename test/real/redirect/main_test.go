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

// programsVariable has the programs for the test process in the pod.
const programsVariable = "SONDE_TEST_POD"

// sidecarUser is the user of all processes in the pod except for its callers.
const sidecarUser = 5678

// pods has a test for each kind of pod. In the modes, the last argument is the response to a host without a sidecar:
// "no answer" or "web-1".
var pods = map[string]func(*testing.T, harness.Programs){
	"STRICT":     func(t *testing.T, programs harness.Programs) { tryInPod(t, programs, "STRICT", "no answer") },
	"PERMISSIVE": func(t *testing.T, programs harness.Programs) { tryInPod(t, programs, "PERMISSIVE", "web-1") },
	"gateway":    tryGateway,
}

// TestRedirection checks in each mode, and for a gateway, which caller reaches which destination. For each, it runs
// itself again as the sidecar's user in a new network namespace, which is the pod.
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
	for name, try := range pods {
		t.Run(name, func(t *testing.T) {
			if text != "" {
				try(t, programs)
			} else {
				startPod(t, programs, name)
			}
		})
	}
}

// startPod runs one of the tests in a pod.
func startPod(t *testing.T, programs harness.Programs, name string) {
	text, err := json.Marshal(programs)
	must.Do(t, err)
	// The path of the executable may lead through a directory that only root may enter.
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.timeout=5m", "-test.run=^TestRedirection$/^"+name+"$")
	cmd.Env = append(os.Environ(), programsVariable+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET,
		Credential: &syscall.Credential{Uid: sidecarUser, Gid: sidecarUser},
		// For devices, rules and the other machine; to become other users; for programs below root's home directory.
		AmbientCaps: []uintptr{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN, unix.CAP_SETUID, unix.CAP_DAC_READ_SEARCH},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, fs.ErrPermission) {
		redirecttest.NotHere(t, "this needs root with all capabilities, to make network namespaces: redirection was not tried with Envoy: "+err.Error())
	}
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestRedirection/"+name)) {
		t.Errorf("the test in the pod: %v", err)
	}
	t.Logf("%s", out)
}
