package store

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// asNobody runs f as an unprivileged user: if root runs the test, f runs in an unprivileged process.
func asNobody(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		f(t)
		return
	}
	again := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	again.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	again.Dir = "/"
	if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("as an unprivileged user: %v\n%s", err, out)
	}
}
