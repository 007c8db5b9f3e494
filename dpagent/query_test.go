package dpagent

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// viewerFunc implements viewer.
type viewerFunc func(ctx context.Context, w io.Writer) error

func (f viewerFunc) View(ctx context.Context, _ mesh.EnvoyView, w io.Writer) error { return f(ctx, w) }

// TestViewOfAnEnvoyThatHangs checks that the agent gives up on Envoy while the control plane still waits for the agent.
func TestViewOfAnEnvoyThatHangs(t *testing.T) {
	tests := map[string]struct {
		view viewerFunc
		want string
	}{
		"hangs": {func(ctx context.Context, _ io.Writer) error {
			<-ctx.Done()
			return ctx.Err()
		}, "envoy has not answered within 30s"},
		"fails": {func(context.Context, io.Writer) error { return errors.New("connection refused") }, "connection refused"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), answerTimeout)
				defer cancel()
				if err := viewOf(ctx, tc.view, "stats", io.Discard); err == nil || err.Error() != tc.want {
					t.Errorf("viewOf() = %v, want %s", err, tc.want)
				}
				if end, _ := ctx.Deadline(); time.Until(end) < time.Second {
					t.Error("no time is left to report the error")
				}
			})
		})
	}
}
