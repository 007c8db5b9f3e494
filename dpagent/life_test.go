package dpagent_test

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
	"github.com/sonde-mesh/sonde/internal/testing/controlplanetest"
	"github.com/sonde-mesh/sonde/internal/testing/envoytest"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// TestEnvoyIsStartedAgain ends each Envoy and damages its files.
func TestEnvoyIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.start()
		files := map[string][]byte{mesh.FileIdentity: nil, mesh.FileCA: nil, mesh.FileServingCA: nil}
		for name := range files {
			files[name] = r.readFile(name)
		}
		for crash := range 2 {
			if n := len(w.envoys.All()); n != crash+1 {
				t.Fatalf("after %d crashes Envoy was started %d times", crash, n)
			}
			for name := range files {
				if err := os.WriteFile(filepath.Join(r.dir, name), []byte("broken"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			w.envoys.Last().Exit("signal: killed")
			eventually(t, func() string {
				if len(w.envoys.All()) == crash+1 {
					return "not started again"
				}
				return ""
			})
			r.waitReady()
			for name, want := range files {
				if !bytes.Equal(r.readFile(name), want) {
					t.Errorf("%s was not restored", name)
				}
			}
		}
		r.logged(`err="run envoy: signal: killed"`)
		if _, body := r.get("/metrics"); !strings.Contains(body, "sonde_dpagent_envoy_starts_total 3") {
			t.Errorf("/metrics = %s, want 3 starts", body)
		}
		r.agent.Drain()
		r.waitEnd()
		<-w.envoys.Last().Ended()
	})
}

// TestEnvoyRefusesItsBootstrap checks that an Envoy in back-off for minutes does not fail /livez, since another agent
// would not help.
func TestEnvoyRefusesItsBootstrap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Set(func(s *controlplanetest.State) { s.Bootstrap = []byte(`{"no_such_field": 1}`) })
		w.envoys.Begin = func(p *envoytest.Process) {
			text, err := os.ReadFile(filepath.Join(p.Command.Dir, workdir.Bootstrap))
			if err != nil || !bytes.Contains(text, []byte("no_such_field")) {
				t.Errorf("bootstrap %s, %v", text, err)
			}
			p.Print("critical|main|error initializing configuration 'bootstrap.json': no such field: 'no_such_field'")
			p.Exit("exit status 1")
		}
		w.Start()
		r := w.run(w.options())
		r.logged("no_such_field")
		for began := time.Now(); time.Since(began) < 5*time.Minute; time.Sleep(time.Second) {
			if code, body := r.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "[-]envoy failed: run envoy: exit status 1; last error in its log: ") {
				t.Fatalf("/readyz = %d %s, want 503 with the reason", code, body)
			}
			if code, body := r.get("/livez"); code != http.StatusOK {
				t.Fatalf("/livez = %d %s, want 200: a restart of the agent would not help", code, body)
			}
		}
		if n := len(w.envoys.All()); n < 30 || n > 60 {
			t.Errorf("Envoy was started %d times in five minutes", n)
		}
		r.end()
	})
}

func TestTemporaryWorkDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tmp := t.TempDir()
		t.Setenv("TMPDIR", tmp)
		w := newWorld(t)
		w.Start()
		o := w.options()
		o.WorkDir = ""
		r := w.run(o)
		r.waitReady()
		made, err := filepath.Glob(filepath.Join(tmp, "sonde-dp-*"))
		if err != nil || len(made) != 1 {
			t.Fatalf("work directories = %q, %v, want one", made, err)
		}
		for name, mode := range map[string]os.FileMode{"": 0o700, "sds": 0o700, mesh.FileIdentity: 0o600, mesh.FileCA: 0o600} {
			info, err := os.Stat(filepath.Join(made[0], name))
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != mode {
				t.Errorf("mode of %q = %o, want %o", name, info.Mode().Perm(), mode)
			}
		}
		r.end()
		if _, err := os.Stat(made[0]); !os.IsNotExist(err) {
			t.Errorf("the work directory is still there: %v", err)
		}
	})
}

func TestWorkDirectoryIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Start()
		o := w.options()
		w.run(o).waitReady()
		second, err := newAgent(t, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := second.Run(wait.Context(t)); err == nil || !strings.Contains(err.Error(), "WorkDir") || !strings.Contains(err.Error(), o.WorkDir) {
			t.Errorf("Run() in a directory that another agent uses: error = %v, want one that names it", err)
		}
	})
}

func TestTokenIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.Start()
		o := w.options()
		writeToken(t, o, "bad")
		w.run(o).becomesReadyWithAToken(o)
	})
}

// becomesReadyWithAToken gives a valid token to an agent that was rejected.
func (r *running) becomesReadyWithAToken(o options) {
	r.t.Helper()
	r.logged("control plane rejects this proxy")
	if code, body := r.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "bad token") {
		r.t.Errorf("/readyz = %d %q, want 503 with the reason", code, body)
	}
	writeToken(r.t, o, "good")
	r.waitReady()
}
