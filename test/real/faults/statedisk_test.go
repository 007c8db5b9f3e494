package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// disk is an ext4 file system for one test.
type disk struct {
	t      *testing.T
	device string // such as loop0
	path   string
}

// mountDisk creates a disk, and mounts it at a directory that does not exist yet. It skips the test if mounting is
// not possible.
func mountDisk(t *testing.T, place string) *disk {
	t.Helper()
	if os.Geteuid() != 0 {
		redirecttest.NotHere(t, "only root can mount a disk")
	}
	dir := t.TempDir() // not in the machine's directory, which is removed before the disk is unmounted
	image, path := filepath.Join(dir, "disk.img"), filepath.Join(dir, "state")
	must.Do(t, errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 16<<20), os.Mkdir(path, 0o700), os.Symlink(path, place)))
	run := func(program string, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
		if err != nil {
			redirecttest.NotHere(t, fmt.Sprintf("%s: %v: %s", program, err, out))
		}
		return strings.TrimSpace(string(out))
	}
	run("mkfs.ext4", "-q", "-m", "0", image)
	d := &disk{t: t, device: run("losetup", "--find", "--show", image), path: path}
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", d.device).Run() })
	must.Do(t, unix.Mount(d.device, d.path, "ext4", 0, "errors=remount-ro"))
	t.Cleanup(func() { _ = unix.Unmount(d.path, unix.MNT_DETACH) })
	must.Do(t, os.Chmod(d.path, 0o700))
	return d
}

// freeze blocks all writes until the caller calls mend.
func (d *disk) freeze() (mend func()) {
	d.t.Helper()
	freeze := func(command uint) error {
		directory, err := os.Open(d.path)
		if err != nil {
			return err
		}
		defer func() { _ = directory.Close() }()
		_, err = unix.IoctlRetInt(int(directory.Fd()), command)
		return err
	}
	const fiFreeze, fiThaw = 0xc0045877, 0xc0045878 // linux/fs.h
	must.Do(d.t, freeze(fiFreeze))
	thaw := func() { _ = freeze(fiThaw) }
	d.t.Cleanup(thaw) // otherwise processes that write could not end
	return thaw
}

// fill leaves no space for a file.
func (d *disk) fill() (mend func()) {
	d.t.Helper()
	filler := filepath.Join(d.path, "filler")
	must.Do(d.t, os.Mkdir(filler, 0o700))
	for n, size := 0, 1<<20; size > 0; n++ { // even an empty file needs space
		if err := os.WriteFile(filepath.Join(filler, strconv.Itoa(n)), make([]byte, size), 0o600); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else {
			must.Do(d.t, err)
		}
	}
	return func() { must.Do(d.t, os.RemoveAll(filler)) }
}

// breakDown makes the kernel detect an error in the file system and remount it read-only.
func (d *disk) breakDown() (mend func()) {
	d.t.Helper()
	must.Do(d.t, os.WriteFile("/sys/fs/ext4/"+filepath.Base(d.device)+"/trigger_fs_error", []byte("1"), 0))
	must.Poll(d.t, "the disk to be read-only", func(context.Context) error {
		if err := os.WriteFile(filepath.Join(d.path, "probe"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
			return fmt.Errorf("a write does not end with EROFS: %w", err)
		}
		return nil
	})
	return nil
}

// harms has ways to damage a disk, with the error that the system then reports. mend is nil if the damage
// cannot be repaired.
var harms = map[string]struct {
	harm func(*disk) (mend func())
	says string
}{
	"stuck":     {(*disk).freeze, "no answer from the disk within 5s"},
	"full":      {(*disk).fill, "no space left on device"},
	"read-only": {(*disk).breakDown, "read-only file system"},
}

// newMeshOnDisk starts a control plane whose state directory is on its own disk.
func newMeshOnDisk(t *testing.T, meshYAML string) (m *harness.Machine, state *disk) {
	t.Helper()
	m = harness.New(t, harness.Options{Programs: programs, MeshYAML: meshYAML, Prepare: func(m *harness.Machine) error {
		state = mountDisk(t, m.StateDir())
		return nil
	}})
	return m, state
}

// TestStateDisk damages the disk of the state directory. Operations that need no disk continue, and a health check
// reports the error. After the repair, the control plane writes the missed changes.
func TestStateDisk(t *testing.T) {
	for name, tc := range harms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, mounted := newMeshOnDisk(t, meshYAML(shortLife))
			proxies := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}},
				harness.ProxyOptions{Name: "b-1", Service: "b", ServiceProbe: probed}, harness.ProxyOptions{Name: "b-2", Service: "b"})
			a, b1, b2 := proxies[0], proxies[1], proxies[2]
			synced(t, proxies...)
			endpoints(t, a, "b", b1, b2)

			mend := tc.harm(mounted)
			b1.App.Kill()
			endpoints(t, a, "b", b2)
			must.Do(t, b1.StartApp(t.Context()))
			endpoints(t, a, "b", b1, b2)
			b3 := must.Add(t, m, harness.ProxyOptions{Name: "b-3", Service: "b"})[0]
			endpoints(t, a, "b", b1, b2, b3)
			must.Do(t, terminate(b2.Agent))
			endpoints(t, a, "b", b1, b3)
			renewed(t, a)
			readiness(t, m, "[-]state failed", tc.says)
			_, err := m.Get(t.Context(), "http://"+m.Health+"/livez")
			must.Do(t, err)
			must.Log(t, m.ControlPlane, "state is not on disk", tc.says)
			calls(t, a, "b")
			if mend == nil {
				return
			}
			mend()
			must.Do(t, m.ControlPlaneReady(t.Context()))
			must.Log(t, m.ControlPlane, "is writable again")
			m.ControlPlane.Kill()
			must.Do(t, m.StartControlPlane(t.Context()))
			endpoints(t, a, "b", b1, b3) // b-2 drains, and b-3 has joined
		})
	}
}

// probed is a probe that detects the end of the application soon.
var probed = map[string]any{"interval": "1s", "tcp": map[string]any{}}

// renewed waits until the proxy has another certificate than now.
func renewed(t *testing.T, p *harness.Proxy) {
	t.Helper()
	serial := func() string {
		identity, err := p.Identity()
		must.Do(t, err)
		return identity.Leaf.SerialNumber.Text(16)
	}
	before := serial()
	must.Poll(t, p.Name+" to have another certificate", func(context.Context) error {
		if now := serial(); now == before {
			return fmt.Errorf("it has %s", now)
		}
		return nil
	})
}

// readiness waits until the control plane is not ready, for a reason with these texts.
func readiness(t *testing.T, m *harness.Machine, texts ...string) {
	t.Helper()
	must.Poll(t, "the control plane to be unready", func(ctx context.Context) error {
		_, err := m.Get(ctx, "http://"+m.Health+"/readyz")
		s := statusOf(err)
		for _, text := range texts {
			if s.Code != 503 || !strings.Contains(s.Body, text) {
				return fmt.Errorf("its readiness is %d %s, want 503 and %q", s.Code, s.Body, text)
			}
		}
		return nil
	})
}

// TestStartOnABadDisk starts a control plane whose state directory is not writable: it serves what it could read, and
// reports the error.
func TestStartOnABadDisk(t *testing.T) {
	for name, tc := range harms {
		if name == "stuck" {
			continue // the killed process cannot end before the disk responds
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, mounted := newMeshOnDisk(t, meshYAML(0))
			proxies := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}},
				harness.ProxyOptions{Name: "b-1", Service: "b"})
			synced(t, proxies...)
			m.ControlPlane.Kill()
			tc.harm(mounted)
			must.Do(t, m.LaunchControlPlane())
			readiness(t, m, "[-]state failed", tc.says)
			must.Log(t, m.ControlPlane, "state is not on disk", tc.says)
			b2 := must.Add(t, m, harness.ProxyOptions{Name: "b-2", Service: "b"})[0]
			endpoints(t, proxies[0], "b", proxies[1], b2)
			calls(t, proxies[0], "b")
		})
	}
}
