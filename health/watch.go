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

// watchPause is between two runs of all checks. Three of them have to be less than WatchdogSec of a unit of systemd.
const watchPause = 10 * time.Second

// maxStatus is how many bytes of what fails are in the status for a service manager.
const maxStatus = 200

// Watch runs all checks from time to time until ctx ends, so that metrics and the log are true without callers. A service manager
// that waits for notifications (sd_notify(3)) gets READY once started is closed, from then on WATCHDOG while livez passes, and what readyz
// says as STATUS.
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
			r.tell(daemon.SdNotifyReady) // and runs no check: what does not pass yet would be kept for others
		case <-pause.C:
			r.tell(r.look(ctx)...)
		}
	}
}

// look runs all checks, and returns what the service manager is to be told.
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
		r.log.Debug("service manager not notified", "err", err) // it ends a service that it has no notification of
	}
}
