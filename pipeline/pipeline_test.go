package pipeline

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestPipelineOfMeshes checks what the pipeline does about a mesh: a new one gets a CA, and if mTLS is switched off,
// that is a warning.
func TestPipelineOfMeshes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state, err := store.OpenState(filepath.Join(t.TempDir(), "state"))
		if err != nil {
			t.Fatal(err)
		}
		defer state.Close() //nolint:errcheck // every write was synced
		authority, err := identity.New(t.Context(), identity.Options{Secrets: state.Secrets(), Records: state})
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		applied := make(chan struct{})
		p := New(Options{
			View:      meshview.Options{Applied: func(meshview.Change) { applied <- struct{}{} }},
			Authority: authority,
			Logger:    slog.New(slog.NewTextHandler(&log, nil)),
		}, Authorize)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		put := func(m *mesh.Mesh) {
			m.SetDefaults()
			p.Builder.Set("", m)
			<-applied
		}
		secured := &mesh.Mesh{Name: "prod"}
		secured.Spec.MTLS = &mesh.MTLS{EnabledBackend: "ca", Backends: []mesh.Backend{{Name: "ca", Type: "builtin"}}}
		go func() { ended <- p.Run(ctx) }()
		<-applied // the first view is built without any object
		put(secured)
		if authority.CAExpires("prod").IsZero() {
			t.Error("a new mesh has no CA")
		}
		if log.Len() > 0 {
			t.Errorf("a new mesh logs %s", &log)
		}
		put(&mesh.Mesh{Name: "prod"})
		if want := `level=WARN msg="mTLS is off from now on" mesh=prod`; !strings.Contains(log.String(), want) {
			t.Errorf("the log is %q, want %q", &log, want)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}
