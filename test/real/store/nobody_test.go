package store

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// asNobody runs f as a user who may not do everything: the test of root runs again in a process of nobody.
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
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}
