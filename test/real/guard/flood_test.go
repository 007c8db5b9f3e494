package guard_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/memorytest"
)

// flood opens connections from an address other than the kubelet's, more than the guard has files, until stop is
// called: some are silent, some send slowly, and some make probes.
func flood(t *testing.T, address string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	says := []string{"", "GET /ok HTTP/1.1\r\nHo", "GET /ok?" + strings.Repeat("x", 50<<10), "GET /first/slow HTTP/1.1\r\nHost: x\r\nSonde-Probe: one\r\n\r\n"}
	var group sync.WaitGroup
	for n := range 2 * files {
		group.Go(func() {
			again := time.NewTicker(100 * time.Millisecond)
			defer again.Stop()
			for ; ctx.Err() == nil; <-again.C {
				c, err := dialer.DialContext(ctx, "tcp", address)
				if err != nil {
					continue
				}
				_, _ = io.WriteString(c, says[n%len(says)]) // the guard may have closed the connection
				_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
				_, _ = io.Copy(io.Discard, c) // as above
				_ = c.Close()
			}
		})
	}
	return func() {
		cancel()
		group.Wait()
	}
}

func TestFlood(t *testing.T) {
	tests := map[string]struct {
		role string
		want verdict
	}{
		"while a worker runs":  {"serves", success},
		"while no worker runs": {"ready once", errored},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := startGuard(t, tc.role)
			g.waitReady()
			if tc.want == errored {
				g.kill()
			}
			stop := flood(t, g.address)
			defer stop()
			id := map[verdict]string{success: patient, errored: "three"}[tc.want]
			for range 3 {
				if got, text := g.probe(id, "/ok"); got != tc.want {
					t.Errorf("the kubelet's probe: %s %s, want %s", got, text, tc.want)
				}
			}
			const limit = 8 << 20
			if anon := g.rssAnon(); anon > limit && !raceEnabled {
				t.Errorf("RssAnon of the guard = %d bytes, want at most %d", anon, limit)
			}
			if open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", g.cmd.Process.Pid)); err != nil || len(open) > files-8 {
				t.Errorf("the guard has %d files open, %v: want some left of %d", len(open), err, files)
			}
			stop()
			if tc.want == success {
				g.waitReady()
			}
		})
	}
}

// rssAnon returns the guard's anonymous memory, in bytes.
func (g *guarded) rssAnon() int {
	g.t.Helper()
	m, err := memorytest.Of(g.cmd.Process.Pid)
	if err != nil {
		g.t.Fatal(err)
	}
	return int(m.RssAnon)
}

// TestGarbage shows that a busy guard does not grow: it allocates no garbage.
func TestGarbage(t *testing.T) {
	g := startGuard(t, "serves")
	g.waitReady()
	ask := func(n int) {
		for range n {
			if got, text := g.probe(patient, "/ok"); got != success {
				t.Fatalf("%s %s", got, text)
			}
		}
	}
	ask(50)
	before := g.rssAnon()
	ask(3000)
	if grown := g.rssAnon() - before; grown > 200<<10 && !raceEnabled {
		t.Errorf("RssAnon grew by %d bytes in 3000 probes", grown)
	}
}
