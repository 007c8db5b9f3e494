package health

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard []string // states that the service manager received
		r := New(Options{Registerer: prometheus.NewRegistry(), notify: func(state string) error { heard = append(heard, state); return nil }})
		var dead, unready atomic.Value // results of the checks
		type result struct{ error }
		r.Add(Livez, Check{Name: "alive", Run: func(context.Context) error { return dead.Load().(result).error }})
		r.Add(Readyz, Check{Name: "disk", Run: func(context.Context) error { return unready.Load().(result).error }})
		dead.Store(result{})
		unready.Store(result{})
		r.Add(Readyz, Check{Name: "hint", Informational: true, Run: func(context.Context) error { return errors.New("for people") }})
		ctx, cancel := context.WithCancel(t.Context())
		started, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			r.Watch(ctx, started)
		}()
		synctest.Wait()
		expect := func(what, want string, value float64) {
			t.Helper()
			synctest.Wait()
			if got := strings.Join(heard, "\n"); got != want {
				t.Errorf("%s: the service manager received %q, want %q", what, got, want)
			}
			heard = nil
			if got := testutil.ToFloat64(r.metrics.healthy.WithLabelValues("readyz", "disk", "error")); got != value {
				t.Errorf("%s: the metric is %v, want %v", what, got, value)
			}
		}
		expect("at first", "", 0)
		close(started)
		expect("started", "READY=1", 0)
		time.Sleep(watchPause)
		expect("ready", "WATCHDOG=1\nSTATUS=ready", 1)
		unready.Store(result{errors.New("no space\nleft " + strings.Repeat("x", 300))})
		time.Sleep(watchPause)
		expect("not ready", "WATCHDOG=1\nSTATUS=not ready: disk: no space left "+strings.Repeat("x", maxStatus-len("no space left ")), 0)
		dead.Store(result{errors.New("stuck")})
		unready.Store(result{})
		time.Sleep(watchPause)
		expect("not alive", "STATUS=ready", 1)
		cancel()
		<-ended
		expect("ended", "STOPPING=1", 1)
		if got := testutil.ToFloat64(r.metrics.healthy.WithLabelValues("readyz", "hint", "warning")); got != 0 {
			t.Errorf("the metric of the hint is %v, want 0", got)
		}
	})
}
