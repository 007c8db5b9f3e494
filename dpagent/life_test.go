package dpagent_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var startedLine = regexp.MustCompile(`(?:envoy started.*?pid"?[=:])(\d+)`)

// envoyPIDs are those of all Envoys that the agent has started.
func (r *running) envoyPIDs() []int {
	r.t.Helper()
	var pids []int
	for _, m := range startedLine.FindAllStringSubmatch(r.logs.String(), -1) {
		pid, err := strconv.Atoi(m[1])
		if err != nil {
			r.t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

func gone(pid int) string {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || strings.Contains(string(state), ") Z ") { // a zombie runs no more: its parent has yet to ask
		return ""
	}
	return fmt.Sprintf("process %d lives", pid)
}

func TestEnvoyIsStartedAgain(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	r := startAgent(t, options(t, cp))
	r.waitReady()
	for crash := range 2 {
		pids := r.envoyPIDs()
		if len(pids) != crash+1 {
			t.Fatalf("after %d crashes Envoy was started %d times", crash, len(pids))
		}
		if err := syscall.Kill(pids[crash], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, 10*time.Second, func() string {
			if n := len(r.envoyPIDs()); n == crash+1 {
				return "not started again"
			}
			return ""
		})
		r.waitReady()
	}
	r.logged(`err="run envoy: signal: killed"`)
	if _, body := r.get("/metrics"); !strings.Contains(body, "sonde_dpagent_envoy_starts_total 3") {
		t.Errorf("/metrics = %s, want 3 starts", body)
	}
	r.agent.Drain()
	r.waitEnd(10 * time.Second)
	for _, pid := range r.envoyPIDs() {
		eventually(t, time.Second, func() string { return gone(pid) })
	}
}

func TestEnvoyRefusesItsBootstrap(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, []byte(`{"no_such_field": 1}`))
	cp.start()
	r := startAgent(t, options(t, cp))
	r.logged("no_such_field")
	eventually(t, 10*time.Second, func() string {
		code, body := r.get("/readyz")
		if code == http.StatusServiceUnavailable && strings.Contains(body, "[-]envoy failed: run envoy: exit status 1; its last error: ") {
			return ""
		}
		return body
	})
	eventually(t, 10*time.Second, func() string {
		if n := len(r.envoyPIDs()); n < 4 {
			return fmt.Sprint("only started ", n, " times")
		}
		return ""
	})
	if code, _ := r.get("/livez"); code != http.StatusOK {
		t.Errorf("/livez = %d, want 200: another agent would fare no better", code)
	}
	r.cancel()
	r.waitEnd(20 * time.Second)
}

func TestEnvoyDiesWithItsAgent(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	p := startProgram(t, cp)
	p.waitReady()
	pids := p.envoyPIDs()
	if len(pids) != 1 || gone(pids[0]) == "" {
		t.Fatalf("Envoys = %v, want one that lives", pids)
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait() // it says "killed"
	eventually(t, 5*time.Second, func() string { return gone(pids[0]) })
}

func TestTemporaryWorkDirectory(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	o := options(t, cp)
	o.WorkDir = ""
	r := startAgent(t, o)
	r.waitReady()
	made, err := filepath.Glob(filepath.Join(tmp, "sonde-dp-*"))
	if err != nil || len(made) != 1 {
		t.Fatalf("work directories = %q, %v, want one", made, err)
	}
	for name, mode := range map[string]os.FileMode{"": 0o700, "sds": 0o700, "sds/identity.json": 0o600, "sds/ca.json": 0o600, "admin.sock": 0o600} {
		info, err := os.Stat(filepath.Join(made[0], name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode {
			t.Errorf("mode of %q = %o, want %o", name, info.Mode().Perm(), mode)
		}
	}
	r.cancel()
	r.waitEnd(20 * time.Second)
	if _, err := os.Stat(made[0]); !os.IsNotExist(err) {
		t.Errorf("the work directory is still there: %v", err)
	}
}

func TestLongWorkDirectory(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	o := options(t, cp)
	o.WorkDir = filepath.Join(o.WorkDir, strings.Repeat("long/", 30))
	r := startAgent(t, o)
	r.waitReady()
	r.cancel()
	r.waitEnd(20 * time.Second)
}

func TestWorkDirectoryIsTaken(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	o := options(t, cp)
	r := startAgent(t, o)
	r.waitReady()
	second, err := newAgent(t, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "WorkDir") || !strings.Contains(err.Error(), o.WorkDir) {
		t.Errorf("Run() in a directory that another agent uses: error = %v, want one that names it", err)
	}
}

func TestDrainBeforeJoin(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	r := startAgent(t, options(t, cp))
	r.logged("not joined yet")
	r.agent.Drain()
	r.waitEnd(20 * time.Second)
}

func TestTokenIsReplaced(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	o := options(t, cp)
	if err := os.WriteFile(o.TokenFile, []byte("bad"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := startAgent(t, o)
	r.logged("control plane refuses this proxy")
	if code, body := r.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "bad token") {
		t.Errorf("/readyz = %d %q, want 503 that says why", code, body)
	}
	if err := os.WriteFile(o.TokenFile, []byte("good"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.waitReady()
}
