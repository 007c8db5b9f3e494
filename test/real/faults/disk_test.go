package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestFullDisk fills the disk before certificates are renewed. A restart would not help, so the agent stays live, and
// ready until the old certificate expires. After the disk has space again, everything works.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 3*shortLife) // on a busy machine, a renewal fails well before the certificate expires
	p := must.Prepare(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"a"}})
	disk := filepath.Dir(p.IdentityFile())
	must.Do(t, os.MkdirAll(disk, 0o700))
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64k,mode=700"); errors.Is(err, unix.EPERM) {
		redirecttest.NotHere(t, "only root can mount a small disk")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) }) // the agent may still use the disk
	must.Do(t, m.Launch(t.Context(), p))
	calls(t, p, "a")

	filler := filepath.Join(disk, "filler")
	if err := os.WriteFile(filler, make([]byte, 128<<10), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("fill the disk: %v, want %v", err, syscall.ENOSPC)
	}
	must.Log(t, p.Agent, "failed to renew certificate", "no space left on device")
	ask := func(ctx context.Context, group string) error {
		_, err := m.Get(ctx, "http://"+p.Admin+"/"+group)
		return err
	}
	must.Do(t, ask(t.Context(), "livez"))
	must.Do(t, ask(t.Context(), "readyz"))
	calls(t, p, "a")
	must.Poll(t, "the certificate to expire", func(ctx context.Context) error {
		err := ask(ctx, "readyz")
		if status := statusOf(err); status.Code != 503 || !strings.Contains(err.Error(), "[-]identity failed: the certificate expired") {
			return fmt.Errorf("readiness is %w", err)
		}
		return nil
	})
	must.Do(t, ask(t.Context(), "livez"))

	must.Do(t, os.Remove(filler))
	must.Do(t, p.WaitReady(t.Context()))
	synced(t, p)
	calls(t, p, "a")
	must.Do(t, ask(t.Context(), "livez"))
}
