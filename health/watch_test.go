package health

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// manager is the socket of a service manager.
func manager(t *testing.T) *net.UnixConn {
	t.Helper()
	at := &net.UnixAddr{Net: "unixgram", Name: filepath.Join(t.TempDir(), "notify")}
	c, err := net.ListenUnixgram(at.Net, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	t.Setenv("NOTIFY_SOCKET", at.Name)
	return c
}

// heard returns what the manager was told since it was asked last.
func heard(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	var all []string
	for buffer := make([]byte, 4096); ; {
		_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
		n, err := c.Read(buffer)
		if err != nil {
			return strings.Join(all, "\n")
		}
		all = append(all, string(buffer[:n]))
	}
}

func TestWatch(t *testing.T) {
	c := manager(t)
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		r := New(Options{Registerer: registry})
		var dead, unready atomic.Value // of result
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
			if got := heard(t, c); got != want {
				t.Errorf("%s: the manager has heard %q, want %q", what, got, want)
			}
			if got := testutil.ToFloat64(r.metrics.healthy.WithLabelValues("readyz", "disk", "error")); got != value {
				t.Errorf("%s: the metric is %v, want %v", what, got, value)
			}
		}
		expect("at first", "", 0)
		close(started)
		expect("started", "READY=1", 0)
		<-time.After(watchPause)
		expect("ready", "WATCHDOG=1\nSTATUS=ready", 1)
		unready.Store(result{errors.New("no space\nleft " + strings.Repeat("x", 300))})
		<-time.After(watchPause)
		expect("not ready", "WATCHDOG=1\nSTATUS=not ready: disk: no space left "+strings.Repeat("x", maxStatus-len("no space left ")), 0)
		dead.Store(result{errors.New("stuck")})
		unready.Store(result{})
		<-time.After(watchPause)
		expect("not alive", "STATUS=ready", 1)
		cancel()
		<-ended
		expect("ended", "STOPPING=1", 1)
		if got := testutil.ToFloat64(r.metrics.healthy.WithLabelValues("readyz", "hint", "warning")); got != 0 {
			t.Errorf("the metric of the hint is %v, want 0", got)
		}
	})
}
