package envoy

import (
	"errors"
	"io"
	"net"
	"net/http"
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
	open := make(chan struct{})
	close(open)
	answers, hangs := serveAdmin(t, open), serveAdmin(t, make(chan struct{}))
	nobody := &net.UnixAddr{Net: "unix", Name: filepath.Join(t.TempDir(), "none.sock")}
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	tests := map[string]struct {
		at    *net.UnixAddr
		down  error
		alive alive
		want  string // in the error, "" for none
	}{
		"answers":                            {at: answers},
		"answers again":                      {at: answers, alive: alive{silent: ago(time.Hour)}},
		"does not answer yet":                {at: nobody},
		"does not answer within the limit":   {at: hangs, alive: alive{silent: ago(limit / 2)}},
		"does not answer":                    {at: nobody, alive: alive{silent: ago(2 * limit), asked: ago(limit / 2)}, want: "envoy has not answered for"},
		"hangs":                              {at: hangs, alive: alive{silent: ago(2 * limit), asked: ago(limit / 2)}, want: "envoy has not answered for"},
		"not started yet":                    {at: nobody, down: errors.New("it was not started yet")},
		"was not asked for long":             {at: nobody, alive: alive{silent: ago(2 * limit), asked: ago(limit + time.Second)}},
		"in back-off":                        {at: nobody, down: errors.New("killed"), alive: alive{ended: ago(limit / 2)}},
		"in back-off, and hung before":       {at: nobody, down: errors.New("killed"), alive: alive{ended: ago(limit / 2), silent: ago(time.Hour)}},
		"ended, and nobody starts it again":  {at: nobody, down: errors.New("killed"), alive: alive{ended: ago(2 * limit)}, want: "was not started again: killed"},
		"started again, after it has hung":   {at: nobody, alive: alive{}},
		"answers, whatever was known before": {at: answers, alive: alive{ended: ago(time.Hour), silent: ago(time.Hour)}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			e := &Envoy{Admin: NewAdmin(tc.at), o: Options{HangLimit: limit}, down: tc.down, alive: tc.alive}
			err := e.Alive(t.Context())
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Alive() = %v, want %q", err, tc.want)
			}
			if err := e.Alive(t.Context()); (err != nil) != (tc.want != "") {
				t.Errorf("Alive() once more = %v, want %q", err, tc.want)
			}
		})
	}
}
