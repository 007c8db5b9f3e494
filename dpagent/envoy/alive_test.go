package envoy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serveAdmin answers as an Envoy does, or not at all while hangs is open.
func serveAdmin(t *testing.T, hangs chan struct{}) *net.UnixAddr {
	t.Helper()
	at := &net.UnixAddr{Net: "unix", Name: filepath.Join(t.TempDir(), "admin.sock")}
	l, err := net.ListenUnix(at.Net, at)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-hangs:
			_, _ = io.WriteString(w, "disabled\n")
		case <-r.Context().Done():
		}
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // it says that it was closed
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	return at
}

func TestAlive(t *testing.T) {
	const limit = 30 * time.Second
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	tests := map[string]struct {
		down  error
		alive alive
		want  string // in the error, "" for none
	}{
		"answers":                           {},
		"does not answer within the limit":  {alive: alive{silent: ago(limit / 2)}},
		"is being killed":                   {alive: alive{silent: ago(limit + time.Second)}},
		"does not end":                      {alive: alive{silent: ago(2 * limit)}, want: "envoy has not answered for 1m0s, and does not end"},
		"not started yet":                   {down: errors.New("it was not started yet")},
		"in back-off":                       {down: errors.New("killed"), alive: alive{ended: ago(limit / 2)}},
		"in back-off, and hung before":      {down: errors.New("killed"), alive: alive{ended: ago(limit / 2), silent: ago(time.Hour)}},
		"ended, and nobody starts it again": {down: errors.New("killed"), alive: alive{ended: ago(2 * limit)}, want: "was not started again: killed"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e := &Envoy{o: Options{HangLimit: limit}, down: tc.down, alive: tc.alive}
			if err := e.Alive(t.Context()); (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Alive() = %v, want %q", err, tc.want)
			}
		})
	}
}

// TestWatch watches real processes in the place of Envoy.
func TestWatch(t *testing.T) {
	open := make(chan struct{})
	close(open)
	answers, hangs := serveAdmin(t, open), serveAdmin(t, make(chan struct{}))
	nobody := &net.UnixAddr{Net: "unix", Name: filepath.Join(t.TempDir(), "none.sock")}
	tests := map[string]struct {
		at     *net.UnixAddr
		script string
		limit  time.Duration
		want   string // in the error, "" for none within a second more than stillLimit
	}{
		"it answers, and does not run":        {answers, "exec sleep 100", time.Minute, ""},
		"it does not run":                     {hangs, "exec sleep 100", time.Minute, "it has not run for"},
		"it has stopped":                      {hangs, "kill -STOP $$", time.Minute, "it has not run for"},
		"it has stopped, and refuses":         {nobody, "kill -STOP $$", time.Minute, "it has not run for"},
		"it is busy":                          {hangs, "while :; do :; done", time.Minute, ""},
		"it is busy for longer than it may":   {hangs, "while :; do :; done", time.Second, "it has not answered for"},
		"it starts, and answers nobody yet":   {nobody, "while sleep 0.2; do :; done", time.Minute, ""},
		"it wakes, and never answers anybody": {hangs, "while sleep 0.2; do :; done", 2 * time.Second, "it has not answered for"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			process := exec.CommandContext(t.Context(), "sh", "-c", tc.script)
			if err := process.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = process.Process.Kill()
				_ = process.Wait() // it was killed
			}()
			e := &Envoy{Admin: NewAdmin(tc.at), o: Options{HangLimit: tc.limit}}
			limit := stillLimit + time.Second
			if tc.want != "" {
				limit = time.Minute
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			err := e.watch(ctx, process.Process.Pid)
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("watch() = %v, want %q", err, tc.want)
			}
		})
	}
}
