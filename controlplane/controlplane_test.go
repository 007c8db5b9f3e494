package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/slowtest"
)

func TestMain(m *testing.M) {
	slowtest.AtOnce(6)
	goleak.VerifyTestMain(m)
}

// local returns options for free local ports and empty directories.
func local(t *testing.T) Options {
	t.Helper()
	return Options{Store: "dir:" + t.TempDir(), StateDir: filepath.Join(t.TempDir(), "state"), BindAddress: "127.0.0.1"}
}

// TestRun runs all stages, and again with the same state directory.
func TestRun(t *testing.T) {
	t.Parallel()
	o := local(t)
	for range 2 {
		cp, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), "another sonde-cp uses it") {
			t.Errorf("New() with a state directory that is in use: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		ended := make(chan error, 1)
		go func() { ended <- cp.Run(ctx) }()
		for ready(t, o.StateDir) != http.StatusOK && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
		if ctx.Err() != nil {
			t.Error("the control plane does not become ready")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v", err)
		}
		if err := os.Remove(filepath.Join(o.StateDir, addressesFile)); err != nil {
			t.Error(err)
		}
	}
}

// ready returns the status of /readyz, 0 while the health port is not known.
func ready(t *testing.T, stateDir string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(stateDir, addressesFile))
	if err != nil {
		return 0
	}
	var addresses map[string]string
	if err := json.Unmarshal(data, &addresses); err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	response, err := client.Get("http://" + addresses["health"] + "/readyz")
	if err != nil {
		return 0
	}
	_ = response.Body.Close() // the status was read
	return response.StatusCode
}

func TestRunNamesThePortInUse(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close() //nolint:errcheck // nothing was sent
	o := local(t)
	o.HealthPort = uint16(taken.Addr().(*net.TCPAddr).Port)
	cp, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	err = cp.Run(t.Context())
	if field, ok := errors.AsType[*mesh.FieldError](err); !ok || field.Field != "HealthPort" {
		t.Errorf("Run() = %v, want an error for HealthPort", err)
	}
	if cp, err = New(o); err != nil {
		t.Fatalf("after Run the state directory is still in use: %v", err)
	}
	if err := cp.platform.close(); err != nil {
		t.Error(err)
	}
}
