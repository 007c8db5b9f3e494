package scale

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/watchdog/config"
)

// silent is an API server that never responds to requests for one dependant.
type silent struct {
	*world

	name string
}

func (s silent) Get(ctx context.Context, ref v1alpha1.DependantRef) (Object, error) {
	if ref.Name != s.name {
		return s.world.Get(ctx, ref)
	}
	<-ctx.Done()
	return Object{}, ctx.Err()
}

// A dependant without responses fails after its timeout, without its delay; others of its level are scaled, and later
// levels wait.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(map[string]int32{"kcm": 1, "mcm": 1, "ca": 1})
		s := w.scaler()
		s.Objects = silent{w, "mcm"}
		slow := dependant("mcm", 0, 0)
		slow.Down = config.Scaling{Timeout: 3 * time.Second, Delay: time.Hour}
		began := time.Now()
		err := s.Run(t.Context(), Down, []config.Dependant{slow, dependant("ca", 0, 0), dependant("kcm", 1, 1)})
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != 3*time.Second {
			t.Errorf("Run() = %v after %s, want it to time out after 3s", err, took)
		}
		if w.described("ca") != "0 meltdown-protection-active= replicas=1" || w.described("kcm") != "1" {
			t.Errorf("ca is %q, kcm %q", w.described("ca"), w.described("kcm"))
		}
	})
}
