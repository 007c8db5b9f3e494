package controlplane

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// local returns options for free ports of a network in memory, and for empty directories, which are scanned every ten
// seconds.
func local(t *testing.T) Options {
	t.Helper()
	n := virtual.NewNetwork()
	return Options{
		Store: "dir:" + t.TempDir(), StateDir: filepath.Join(t.TempDir(), "state"), BindAddress: "127.0.0.1", Listen: n.Listen, Dial: n.DialFrom("127.0.0.1"),
		watcher: func() (*fsnotify.Watcher, error) {
			return nil, errors.New("a goroutine that waits for the kernel stops the time of a bubble")
		},
	}
}

// TestRun runs all stages, and again with the same state directory.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := local(t)
		for range 2 {
			r := startPlane(t, o)
			if _, err := New(o); err == nil || !strings.Contains(err.Error(), "another sonde-cp uses it") {
				t.Errorf("New() with a state directory that is in use: %v", err)
			}
			r.stop()
			if err := <-r.ended; err != nil {
				t.Errorf("Run() = %v", err)
			}
			if err := os.Remove(filepath.Join(o.StateDir, addressesFile)); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestRunNamesThePortInUse(t *testing.T) {
	const taken = 80
	for name, set := range map[string]func(*Options){
		"AgentsPort":    func(o *Options) { o.AgentsPort = taken },
		"AdminPort":     func(o *Options) { o.AdminPort = taken },
		"HealthPort":    func(o *Options) { o.HealthPort = taken },
		"HealthAddress": func(o *Options) { o.HealthAddress = "127.0.0.1:80" },
	} {
		virtual.Run(t, name, func(t *testing.T) {
			o := local(t)
			if _, err := o.Listen(t.Context(), "tcp", "127.0.0.1:80"); err != nil {
				t.Fatal(err)
			}
			set(&o)
			cp, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			err = cp.Run(t.Context())
			if field, ok := errors.AsType[*mesh.FieldError](err); !ok || field.Field != name {
				t.Errorf("Run() = %v, want an error for %s", err, name)
			}
			if cp, err = New(o); err != nil {
				t.Fatalf("after Run the state directory is still in use: %v", err)
			}
			if err := cp.platform.close(); err != nil {
				t.Error(err)
			}
		})
	}
}
