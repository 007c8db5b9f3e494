package guide

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// underSystemd has the steps of root on a machine with systemd, in a clone with the mesh of the ten
// commands.
var underSystemd = []part{{page: "guides/first-mesh.md", section: "The same under systemd"}, {page: "tokens.md"}}

// application creates the unit of the backend's application, which responds slowly to slow requests.
const application = `
cat >/srv/backend.py <<'END'
import http.server, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/slow":
            open("/run/slow", "w").close()
            time.sleep(2)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello from the backend\n")
http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
END
cat >/etc/systemd/system/backend.service <<'END'
[Service]
ExecStart=python3 /srv/backend.py
[Install]
WantedBy=multi-user.target
END
systemctl enable --now backend`

// TestSystemd follows the guide on a machine with systemd, and then kills, hangs and restarts the units. Some
// containers cannot run such a machine: there, TestUnits only parses the units, but .ci/run requires this test.
func TestSystemd(t *testing.T) {
	slowtest.Skip(t, "systemd runs the units")
	t.Parallel()
	commands, want := read(t, underSystemd)
	mesh, _ := read(t, []part{{page: tenCommands.page, section: tenCommands.section, steps: 2}})
	m := boot(t)
	m.run(t, "make the mesh", mesh)
	m.run(t, "start the application", application)
	if diff := cmp.Diff(want, m.run(t, "follow the guide", commands)); diff != "" {
		t.Errorf("it prints (-want +got):\n%s", diff)
	}

	// Each step leaves the mesh as it was.
	const hello = "hello from the backend\n"
	const call = `
sonde-dp wait --timeout=1m
sonde-dp wait --timeout=1m --admin-addr=127.0.0.1:9903
curl --silent --show-error --fail --retry 20 --retry-all-errors --retry-delay 1 http://127.0.0.1:10001/
systemctl list-units --failed --quiet 'sonde*'
`
	for _, step := range []struct{ name, commands, want string }{
		{"restart", "systemctl restart sonde-cp sonde-dp@backend-1 sonde-dp@web-1", hello},
		{"stop drains", `
curl --silent --show-error --fail http://127.0.0.1:10001/slow & request=$!
until [ -e /run/slow ]; do sleep 0.1; done
systemctl stop sonde-dp@backend-1
wait $request
systemctl is-failed sonde-dp@backend-1 || true
systemctl start sonde-dp@backend-1`, hello + "inactive\n" + hello},
		{"the control plane dies, again and again", died("sonde-cp", 6), hello},
		{"an agent dies, again and again", died("sonde-dp@backend-1", 6), hello},
		{"the control plane hangs", hung("sonde-cp"), hello},
		{"an agent hangs", hung("sonde-dp@backend-1"), hello},
	} {
		if diff := cmp.Diff(step.want, m.run(t, step.name, step.commands+call)); diff != "" {
			t.Errorf("%s: it prints (-want +got):\n%s", step.name, diff)
		}
	}
	m.run(t, "remove the tokens", `
. /etc/profile.d/sondectl.sh
rm /etc/sonde/*.token
until [ "$(sondectl get proxies | grep --count ' connected ')" = 2 ]; do sleep 0.2; done
date +%s >/srv/reboot`)
	m.reboot(t)
	if diff := cmp.Diff(hello, m.run(t, "after the reboot, without tokens", call)); diff != "" {
		t.Errorf("after the reboot it prints (-want +got):\n%s", diff)
	}
	const unheard = "journalctl --no-pager --output=cat --unit='sonde-dp@*' --since=@$(cat /srv/reboot) | grep 'drain notice not acknowledged' || true"
	if got := m.run(t, "look for unacknowledged drains", unheard); got != "" {
		t.Errorf("the control plane did not wait for its agents:\n%s", got)
	}
}

// died returns commands that kill the main process of a unit several times, each time after its restart.
func died(unit string, times int) string {
	return fmt.Sprintf(`
begun=$(systemctl show --property=NRestarts --value %[1]s)
for n in $(seq %[2]d); do
  systemctl kill --signal=KILL --kill-whom=main %[1]s
  until [ "$(systemctl show --property=NRestarts --value %[1]s)" = $((begun + n)) ] && systemctl is-active --quiet %[1]s; do sleep 0.1; done
done`, unit, times)
}

// hung returns commands that stop all processes of a unit, and wait until systemd has restarted it. They shorten the
// unit's watchdog timeout.
func hung(unit string) string {
	return fmt.Sprintf(`
drop=/etc/systemd/system/%[1]s.service.d
mkdir $drop
printf '[Service]\nWatchdogSec=21s\nTimeoutAbortSec=1s\n' >$drop/fast.conf
systemctl daemon-reload
systemctl restart %[1]s
begun=$(systemctl show --property=NRestarts --value %[1]s)
systemctl kill --signal=STOP %[1]s
until [ "$(systemctl show --property=NRestarts --value %[1]s)" = $((begun + 1)) ] && systemctl is-active --quiet %[1]s; do sleep 0.1; done
rm -r $drop
systemctl daemon-reload
systemctl restart %[1]s`, unit)
}

// machine is a machine with systemd, in namespaces of this machine.
type machine struct {
	cgroup string
	// ended is closed when the machine has ended; log and err have its output and error.
	ended chan struct{}
	log   bytes.Buffer
	err   error
}

// cannotMount is the exit code of boot.sh if the machine does not support overlays.
const cannotMount = 77

// boot boots a machine, which ends with the test.
func boot(t *testing.T) *machine {
	t.Helper()
	const systemd = "/lib/systemd/systemd"
	if _, err := os.Stat(systemd); err != nil {
		redirecttest.NotHere(t, "there is no "+systemd+": the units were not run")
	}
	namespace := redirecttest.New(t)
	m := &machine{cgroup: newCgroup(t), ended: make(chan struct{})}
	root, err := harness.Root()
	must.Do(t, err)
	clone := t.TempDir()
	must.Do(t, os.CopyFS(filepath.Join(clone, "deploy", "systemd"), os.DirFS(filepath.Join(root, "deploy", "systemd"))))
	cmd := exec.Command("testdata/boot.sh", t.TempDir(), m.cgroup, programs(t), clone)
	cmd.Stdout, cmd.Stderr = &m.log, &m.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	must.Do(t, namespace.Do(cmd.Start))
	go func() {
		m.err = cmd.Wait()
		close(m.ended)
	}()
	t.Cleanup(func() {
		must.Do(t, os.WriteFile(filepath.Join(m.cgroup, "cgroup.kill"), []byte("1"), 0))
		<-m.ended
	})
	m.await(t, "")
	return m
}

// newCgroup creates a cgroup of version 2, and removes it at the end of the test.
func newCgroup(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	must.Do(t, err)
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if f[2] != "cgroup2" {
			continue
		}
		cgroup, err := os.MkdirTemp(f[1], "sonde-guide-") //nolint:usetesting // in the file system of cgroups
		if err != nil {
			redirecttest.NotHere(t, fmt.Sprintf("no cgroup can be made here, so that the units were not run: %v", err))
		}
		t.Cleanup(func() { must.Do(t, removeCgroup(cgroup)) })
		return cgroup
	}
	redirecttest.NotHere(t, "there are no cgroups of version 2 here: the units were not run")
	return ""
}

// removeCgroup removes a cgroup and its children. Their last processes may not have ended yet.
func removeCgroup(cgroup string) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		var all []string
		err := filepath.WalkDir(cgroup, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				all = append(all, path)
			}
			return err
		})
		for _, path := range slices.Backward(all) {
			err = errors.Join(err, os.Remove(path))
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
		<-time.After(50 * time.Millisecond)
	}
}

// init returns the process id of the machine's first process, or "" if none runs.
func (m *machine) init() string {
	pid, _ := os.ReadFile(filepath.Join(m.cgroup, "init.scope", "cgroup.procs"))
	return strings.TrimSpace(string(pid))
}

// await waits until the machine has booted, with another first process than before.
func (m *machine) await(t *testing.T, before string) {
	t.Helper()
	state := ""
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		select {
		case <-m.ended:
			if exit := (&exec.ExitError{}); errors.As(m.err, &exit) && exit.ExitCode() == cannotMount {
				redirecttest.NotHere(t, fmt.Sprintf("this disk cannot be below another: the units were not run\n%s", &m.log))
			}
			t.Fatalf("the machine ended: %v\n%s", m.err, &m.log)
		case <-time.After(100 * time.Millisecond):
		}
		if pid := m.init(); pid == "" || pid == before {
			continue
		}
		// Unrelated units may degrade the machine.
		out, _ := m.command(t.Context(), "systemctl is-system-running").Output()
		if state = strings.TrimSpace(string(out)); state == "running" || state == "degraded" {
			return
		}
	}
	t.Fatalf("the machine is %q after a minute", state)
}

// command returns a command that runs as root on the machine, in the clone.
func (m *machine) command(ctx context.Context, commands string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", "--target", m.init(), "--all", "bash", "-c", "set -euo pipefail\ncd /root/clone\n"+commands)
	cmd.Env = []string{"HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.WaitDelay = time.Second
	return cmd
}

// run runs commands, and returns their output.
func (m *machine) run(t *testing.T, name, commands string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	begun := time.Now()
	cmd := m.command(ctx, commands)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		journal, _ := m.command(t.Context(), "journalctl --no-pager --output=cat --lines=60 --unit='sonde-*'").CombinedOutput()
		t.Fatalf("%s: %v\n%s\n%s\n%s", name, err, &stdout, &stderr, journal)
	}
	t.Logf("%s took %s", name, time.Since(begun).Round(time.Millisecond))
	return stdout.String()
}

// reboot stops all processes, and boots again.
func (m *machine) reboot(t *testing.T) {
	t.Helper()
	before := m.init()
	m.run(t, "reboot", "systemctl reboot")
	// A process that enters now would be stopped, and delay the shutdown.
	m.await(t, before)
}

// TestUnits has systemd verify the units of deploy/systemd, with the built programs in place.
func TestUnits(t *testing.T) {
	slowtest.Skip(t, "systemd reads the units")
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		redirecttest.NotHere(t, "there is no systemd-analyze: the units were not read")
	}
	path := programs(t)
	root, err := harness.Root()
	must.Do(t, err)
	units, err := filepath.Glob(filepath.Join(root, "deploy", "systemd", "*.service"))
	must.Do(t, err)
	if len(units) != 2 {
		t.Errorf("found %d units, want 2", len(units))
	}
	directory := t.TempDir()
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		must.Do(t, err)
		name := filepath.Join(directory, strings.Replace(filepath.Base(unit), "@", "@web-1", 1))
		must.Do(t, os.WriteFile(name, bytes.ReplaceAll(text, []byte("/usr/local/bin"), []byte(path)), 0o600))
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", name).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("systemd-analyze verify %s: %v\n%s", filepath.Base(name), err, out)
		}
	}
}
