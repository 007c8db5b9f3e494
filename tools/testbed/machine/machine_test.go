package machine

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

func TestMountsBelow(t *testing.T) {
	const table = `/dev/vda / ext4 rw 0 0
tmpfs /run/sonde-1 tmpfs rw 0 0
nsfs /run/sonde-1/node1/mounts nsfs rw 0 0
tmpfs /run/sonde-12/x tmpfs rw 0 0
tmpfs /run/sonde-1/with\040space tmpfs rw 0 0
`
	want := []string{"/run/sonde-1/node1/mounts", "/run/sonde-1/with space"}
	if got := mountsBelow(table, "/run/sonde-1"); !slices.Equal(got, want) {
		t.Errorf("mountsBelow() = %q, want %q", got, want)
	}
}

// TestMarked kills a process by its mark, and no other process.
func TestMarked(t *testing.T) {
	mark := "SONDE_TESTBED_TEST=" + t.Name() + t.TempDir()
	start := func(environment ...string) *exec.Cmd {
		cmd := exec.Command("sleep", "600")
		cmd.Env = environment
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd
	}
	marked, other := start("A=b", mark), start(mark+"x")
	find := func() ([]int, error) {
		found, err := Marked(mark)
		var pids []int
		for _, p := range found {
			pids = append(pids, p.PID)
		}
		return pids, err
	}
	if pids, err := find(); err != nil || !slices.Equal(pids, []int{marked.Process.Pid}) {
		t.Errorf("Marked() = %v, %v, want %d alone", pids, err, marked.Process.Pid)
	}
	ended := make(chan error, 1)
	go func() { ended <- marked.Wait() }() // otherwise it remains as a zombie
	if err := KillAll(t.Context(), find); err != nil {
		t.Errorf("KillAll(): %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("the marked process has ended by itself")
	}
	if err := other.Process.Kill(); err != nil {
		t.Errorf("the other process is gone: %v", err)
	}
	_ = other.Wait()
}

func TestKillAllEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// A process ID above the kernel's limit, so that no process is killed.
	if err := KillAll(ctx, func() ([]int, error) { return []int{1 << 30}, nil }); err == nil {
		t.Error("KillAll() of a process that never ends: error = nil after the context's end")
	}
}

func TestSysctlsOfNothing(t *testing.T) {
	if err := RestoreSysctls(filepath.Join(t.TempDir(), "none")); err != nil {
		t.Errorf("RestoreSysctls() without a file: %v", err)
	}
}
