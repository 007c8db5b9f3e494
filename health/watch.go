package health

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/sonde-mesh/sonde/internal/cut"
)

// watchPause is the pause between two runs of all checks. Three pauses must be shorter than WatchdogSec of a systemd
// unit.
const watchPause = 10 * time.Second

// maxStatus limits the status for a service manager, in bytes.
const maxStatus = 200

// Watch runs all checks periodically until ctx ends, so that metrics and log stay current without callers. It notifies
// the service manager, if that requests it (sd_notify(3)): READY once started is closed, from then on WATCHDOG while
// livez passes, and the result of readyz as STATUS.
func (r *Registry) Watch(ctx context.Context, started <-chan struct{}) {
	pause := time.NewTicker(watchPause)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			r.tell(daemon.SdNotifyStopping)
			return
		case <-started:
			started = nil
			// without running checks, since failures at the start would be reused for other callers
			r.tell(daemon.SdNotifyReady)
		case <-pause.C:
			r.tell(r.look(ctx)...)
		}
	}
}

// look runs all checks, and returns the notifications for the service manager.
func (r *Registry) look(ctx context.Context) (states []string) {
	failed := func(result Result) bool { return result.Failed() }
	if !slices.ContainsFunc(r.Results(ctx, Livez), failed) {
		states = append(states, daemon.SdNotifyWatchdog)
	}
	status := "ready"
	ready := r.Results(ctx, Readyz)
	if i := slices.IndexFunc(ready, failed); i >= 0 {
		why := strings.Join(strings.Fields(ready[i].Err.Error()), " ")
		status = fmt.Sprintf("not ready: %s: %s", ready[i].Name, cut.Text(why, maxStatus))
	}
	return append(states, "STATUS="+status)
}

func (r *Registry) tell(states ...string) {
	if err := r.notify(strings.Join(states, "\n")); err != nil {
		r.log.Debug("failed to notify the service manager", "err", err) // then it ends this service
	}
}
