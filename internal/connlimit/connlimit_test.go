package connlimit_test

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/internal/connlimit"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// caller is the server's end of a connection.
type caller struct {
	net.Conn
	source net.Addr
	closed int
}

func (c *caller) RemoteAddr() net.Addr { return c.source }

func (c *caller) Close() error {
	c.closed++
	return nil
}

// callers is a listener with all callers in its backlog.
type callers struct {
	net.Listener
	backlog []*caller
}

func (l *callers) Accept() (net.Conn, error) {
	c := l.backlog[0]
	l.backlog = l.backlog[1:]
	return c, nil
}

func TestWhoMakesRoom(t *testing.T) {
	type change struct {
		caller int
		state  http.ConnState
	}
	const greedy, other = "10.0.0.1", "10.0.0.2"
	for name, tc := range map[string]struct {
		sources []string // sources of the callers, one more than the limit
		changes []change // before the last one
		want    int      // index of the closed connection
	}{
		"the oldest":                       {sources: []string{greedy, greedy, greedy, greedy}, want: 0},
		"of the source with most":          {sources: []string{other, greedy, greedy, other}, want: 1},
		"one source is as good as another": {sources: []string{other, greedy, "fe80::1", "10.0.0.4"}, want: 0},
		"of a Unix socket":                 {sources: []string{other, "", "", other}, want: 1},
		"what is answered stays":           {sources: []string{greedy, greedy, greedy, greedy}, changes: []change{{0, http.StateActive}}, want: 1},
		"not for a source with fewer":      {sources: []string{greedy, other, greedy, other}, changes: []change{{0, http.StateActive}, {2, http.StateActive}}, want: 0},
		"idle since longest":               {sources: []string{greedy, greedy, greedy, greedy}, changes: []change{{0, http.StateActive}, {1, http.StateActive}, {2, http.StateActive}, {1, http.StateIdle}, {0, http.StateIdle}}, want: 1},
		"other states are no activity":     {sources: []string{greedy, greedy, greedy, greedy}, changes: []change{{0, http.StateNew}, {0, http.StateHijacked}}, want: 0},
	} {
		for _, encrypted := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				backlog := make([]*caller, len(tc.sources))
				for i, s := range tc.sources {
					backlog[i] = &caller{source: &net.UnixAddr{}}
					if s != "" {
						backlog[i].source = net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(s), uint16(1000+i)))
					}
				}
				limiter := connlimit.New(len(backlog) - 1)
				l := limiter.Listener(&callers{backlog: backlog})
				accepted := make([]net.Conn, len(backlog))
				accept := func(i int) {
					c, err := l.Accept()
					if err != nil {
						t.Fatal(err)
					}
					if accepted[i] = c; encrypted {
						accepted[i] = tls.Server(c, &tls.Config{MinVersion: tls.VersionTLS13})
					}
				}
				last := len(backlog) - 1
				for i := range last {
					accept(i)
				}
				for _, ch := range tc.changes {
					limiter.ConnState(accepted[ch.caller], ch.state)
				}
				accept(last)
				want, got := make([]int, len(backlog)), make([]int, len(backlog))
				want[tc.want] = 1
				for i, c := range backlog {
					got[i] = c.closed
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("closed (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestCloseMakesRoom closes connections twice, as servers do.
func TestCloseMakesRoom(t *testing.T) {
	source := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}
	backlog := []*caller{{source: source}, {source: source}, {source: source}, {source: source}}
	l := connlimit.New(2).Listener(&callers{backlog: backlog})
	for i := range backlog {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			_, _ = c.Close(), c.Close()
		}
	}
	got := []int{backlog[0].closed, backlog[1].closed, backlog[2].closed, backlog[3].closed}
	if diff := cmp.Diff([]int{2, 0, 2, 0}, got); diff != "" {
		t.Errorf("closed (-want +got):\n%s", diff)
	}
}

// TestBegin makes connections active by their calls, several at once.
func TestBegin(t *testing.T) {
	source := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}
	backlog := []*caller{{source: source}, {source: source}, {source: source}, {source: source}}
	l := connlimit.New(2).Listener(&callers{backlog: backlog})
	accept := func() net.Conn {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := accept()
	ends := []func(){connlimit.Begin(first), connlimit.Begin(first)}
	ends[0]()
	accept() // the next caller evicts it
	accept()
	ends[1]()
	connlimit.Begin(backlog[0])() // not a connection of the listener
	accept()
	got := []int{backlog[0].closed, backlog[1].closed, backlog[2].closed, backlog[3].closed}
	if diff := cmp.Diff([]int{0, 1, 1, 0}, got); diff != "" {
		t.Errorf("closed (-want +got):\n%s", diff)
	}
}

// TestWhoHasJustComeMayAsk fills a server with new connections: the next one waits until the oldest had time to send
// its request.
func TestWhoHasJustComeMayAsk(t *testing.T) {
	for name, tc := range map[string]struct {
		active bool
		since  time.Duration
		want   time.Duration
	}{
		"just come":      {false, 0, 20 * time.Millisecond},
		"some time ago":  {false, 15 * time.Millisecond, 5 * time.Millisecond},
		"long ago":       {false, time.Second, 0},
		"and it answers": {true, 0, 0},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			limiter := connlimit.New(1)
			backlog := []*caller{{source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}}, {source: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2)}}}
			l := limiter.Listener(&callers{backlog: backlog})
			first, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if tc.active {
				limiter.ConnState(first, http.StateActive)
			}
			<-time.After(tc.since)
			begin := time.Now()
			if _, err := l.Accept(); err != nil {
				t.Fatal(err)
			}
			if got := time.Since(begin); got != tc.want {
				t.Errorf("the next one waits %s, want %s", got, tc.want)
			}
			if backlog[0].closed != 1 {
				t.Errorf("the first was closed %d times, want once", backlog[0].closed)
			}
		})
	}
}
