package connlimit

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func prefix(n int) netip.Prefix {
	return Source(netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}))
}

func TestPace(t *testing.T) {
	const perSecond = 1 << 20
	for name, tc := range map[string]struct {
		do   func(p *pace) time.Duration
		want time.Duration
	}{
		"a few requests at once":                     {func(p *pace) time.Duration { return p.charge(prefix(1), leastBurst) }, 0},
		"a quarter of a second of all that there is": {func(p *pace) time.Duration { return p.charge(prefix(1), perSecond/4) }, 0},
		"and then its pace": {func(p *pace) time.Duration {
			p.charge(prefix(1), perSecond/4)
			return p.charge(prefix(1), perSecond/16)
		}, time.Second / 16},
		"what it owes adds up": {func(p *pace) time.Duration {
			p.charge(prefix(1), perSecond/4)
			p.charge(prefix(1), perSecond/16)
			return p.charge(prefix(1), perSecond/16)
		}, time.Second / 8},
		"no longer than a second": {func(p *pace) time.Duration { return p.charge(prefix(1), 100*perSecond) }, longestPause},
		"another one need not wait": {func(p *pace) time.Duration {
			p.charge(prefix(1), 100*perSecond)
			return p.charge(prefix(2), leastBurst)
		}, 0},
		"two share the pace": {func(p *pace) time.Duration {
			p.charge(prefix(2), 100*perSecond)
			p.charge(prefix(1), perSecond/8)
			return p.charge(prefix(1), perSecond/16)
		}, time.Second / 8},
		"a thousand leave another one its requests": {func(p *pace) time.Duration {
			for n := range 1000 {
				p.charge(prefix(n), perSecond)
			}
			return p.charge(prefix(1000), leastBurst)
		}, 0},
		"who owes nothing has no part": {func(p *pace) time.Duration {
			for n := range 1000 {
				p.charge(prefix(n), 100)
			}
			<-time.After(time.Second)
			p.charge(prefix(1000), perSecond/4)
			return p.charge(prefix(1000), perSecond/16)
		}, time.Second / 16},
		"a debt is forgotten": {func(p *pace) time.Duration {
			p.charge(prefix(1), 100*perSecond)
			<-time.After(debtTime)
			return p.charge(prefix(1), leastBurst)
		}, 0},
		"but not at once": {func(p *pace) time.Duration {
			p.charge(prefix(1), 100*perSecond)
			<-time.After(2 * time.Second)
			return p.charge(prefix(1), leastBurst)
		}, longestPause},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			if got := tc.do(newPace(perSecond)); got != tc.want {
				t.Errorf("it waits %s, want %s", got, tc.want)
			}
		})
	}
}

// pipes is a listener with one connection.
type pipes struct {
	net.Listener
	server net.Conn
}

func (p pipes) Accept() (net.Conn, error) { return p.server, nil }

func TestReadsWait(t *testing.T) {
	const perSecond = 64 << 10
	for name, tc := range map[string]struct {
		close bool
		want  time.Duration
	}{
		"in a pause":                     {false, time.Second / 2},
		"not once the connection closed": {true, 100 * time.Millisecond},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			client, server := net.Pipe()
			defer client.Close() //nolint:errcheck // a pipe
			c, err := New(1).Pace(perSecond).Listener(pipes{server: server}).Accept()
			if err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = client.Write(make([]byte, freeBytes+perSecond*3/4)) }() // a quarter at once
			if tc.close {
				time.AfterFunc(100*time.Millisecond, func() { _ = c.Close() })
			}
			begin := time.Now()
			if _, err := io.ReadFull(c, make([]byte, freeBytes+perSecond*3/4)); err != nil {
				t.Fatal(err)
			}
			if got := time.Since(begin); got != tc.want {
				t.Errorf("it took %s, want %s", got, tc.want)
			}
			_ = c.Close()
		})
	}
}
