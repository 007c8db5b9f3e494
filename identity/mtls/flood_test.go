package mtls

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sonde-mesh/sonde/internal/connlimit"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// hello returns the first bytes of a client.
func hello(t testing.TB) []byte {
	t.Helper()
	client, server := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Client(client, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).HandshakeContext(context.Background())
	}()
	first, err := readHello(server)
	if err != nil {
		t.Fatal(err)
	}
	_ = server.Close()
	<-done
	return first
}

// hold opens connections that send first and then nothing, until the test ends.
func (s *served) hold(n int, first []byte) (held []net.Conn) {
	s.t.Helper()
	for range n {
		c := s.raw()
		_, _ = c.Write(first) // the server may have closed it
		held = append(held, c)
	}
	return held
}

// holdTLS is like hold, for connections without a certificate that stop after the handshake.
func (s *served) holdTLS(n int) {
	s.t.Helper()
	for range n {
		_, _ = s.handshake(s.tls()) // another connection may have its place
	}
}

// TestHeldConnectionsKeepNobodyOut holds more connections of each kind than there are places, from the address of
// well-behaved clients: these are still served.
func TestHeldConnectionsKeepNobodyOut(t *testing.T) {
	for name, hold := range map[string]func(s *served, started []byte){
		"silent":                    func(s *served, _ []byte) { s.hold(50, nil) },
		"one byte":                  func(s *served, _ []byte) { s.hold(50, []byte{recordHandshake}) },
		"half a hello":              func(s *served, started []byte) { s.hold(50, started[:len(started)/2]) },
		"a hello that is announced": func(s *served, _ []byte) { s.hold(50, []byte{recordHandshake, 3, 1, 0x40, 0}) },
		"half a handshake":          func(s *served, started []byte) { s.hold(50, started) },
		"no certificate":            func(s *served, _ []byte) { s.holdTLS(8) },
		"all of these": func(s *served, started []byte) {
			s.hold(20, nil)
			s.hold(20, started)
			s.holdTLS(8)
			s.hold(20, started)
		},
		"another protocol, and no more": func(s *served, _ []byte) { s.hold(50, []byte("GET / HTTP/1.1\r\n")) },
	} {
		virtual.Run(t, name, func(t *testing.T) {
			s := serve(t, limits{arrivals: 8, handshakes: 4, unauthenticated: 4})
			pair, _ := s.certificate(time.Hour)
			began := time.Now()
			hold(s, hello(t))
			for range 3 {
				s.watch(s.tls(pair), grpc.WaitForReady(true))
				if got := s.caller(); got.ID() != "default/web-1" {
					t.Errorf("caller = %+v", got)
				}
			}
			s.watch(s.tls(), grpc.WaitForReady(true))
			if got := s.caller(); got.Dataplane != errUnauthenticated.Error() {
				t.Errorf("caller = %+v, want one without a certificate", got)
			}
			if took := time.Since(began); took >= s.credentials.limits.helloTimeout {
				t.Errorf("they are served after %s, when the others are over their time", took)
			}
		})
	}
}

// TestWaitingEnds has other connections that keep the only place of each kind: a wait for a place ends by a timeout.
func TestWaitingEnds(t *testing.T) {
	for name, hold := range map[string]func(s *served){
		"handshakes":      func(s *served) { s.hold(2, hello(s.t)) },
		"unauthenticated": func(s *served) { s.holdTLS(2) },
	} {
		virtual.Run(t, name, func(t *testing.T) {
			s := serve(t, limits{handshakes: 1, unauthenticated: 1, patience: time.Minute, waitTimeout: 10 * time.Second})
			hold(s)
			time.Sleep(10*time.Second - 1)
			s.counts(closedLimit, 0)
			time.Sleep(time.Nanosecond)
			s.counts(closedLimit, 1)
		})
	}
}

func TestCallsWithoutACertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, limits{})
		conn := s.client(s.tls())
		for method, want := range map[string]string{
			healthv1.Health_Check_FullMethodName: "",
			healthv1.Health_List_FullMethodName:  "rpc error: code = Unauthenticated desc = " + errUnauthenticated.Error(),
		} {
			got := ""
			if err := conn.Invoke(wait.Context(t), method, &healthv1.HealthListRequest{}, &healthv1.HealthListResponse{}); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%s: %q, want %q", method, got, want)
			}
		}
	})
}

// TestConnectionsOfOneProxy opens more connections than one proxy may have: connections with a call are evicted last.
func TestConnectionsOfOneProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, limits{identified: 3})
		pair, _ := s.certificate(time.Hour)
		called := s.watch(s.tls(pair))
		s.caller()
		for range 10 {
			if _, err := s.handshake(s.tls(pair)); err != nil {
				t.Fatal(err)
			}
		}
		s.counts(closedIdentity, 8)
		s.goesOn("the connection with a call", called)
		newest := s.watch(s.tls(pair))
		s.caller()
		for range 2 {
			s.watch(s.tls(pair))
			s.caller()
		}
		<-called // all have a call: evict the oldest
		s.goesOn("a newer connection", newest)
	})
}

// TestProxiesBeyondTheLimit has one proxy with all places of proxies: it keeps them, and may replace its own
// connections.
func TestProxiesBeyondTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, limits{identified: 2, proxies: 2, waitTimeout: 10 * time.Second})
		first, _ := s.certificate(time.Hour)
		second, _ := issue(t, s.authority, "other", time.Hour)
		oldest := s.watch(s.tls(first))
		s.caller()
		newer := s.watch(s.tls(first))
		s.caller()
		began := time.Now()
		refused, err := s.handshake(s.tls(second))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, refused)
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("another proxy is refused after %s, want 10s", took)
		}
		s.counts(closedLimit, 1)
		s.goesOn("the oldest connection", oldest)
		s.watch(s.tls(first))
		s.caller()
		<-oldest
		s.goesOn("a newer connection", newer)
		s.counts(closedLimit, 1)
		s.counts(closedIdentity, 1)
	})
}

func TestCloseEndsWhatIsNotIdentified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, limits{handshakes: 1})
		pair, _ := s.certificate(time.Hour)
		stays := s.watch(s.tls(pair))
		s.caller()
		held := s.hold(2, nil)
		held = append(held, s.hold(2, hello(t))...)
		synctest.Wait()
		closed := time.Now()
		s.credentials.Close()
		for _, c := range held {
			_, _ = io.Copy(io.Discard, c)
		}
		if took := time.Since(closed); took > 0 {
			t.Errorf("a connection goes on for %s", took)
		}
		s.goesOn("the connection of a proxy", stays)
	})
}

// TestPaceOfOneProxy has a client send as fast as it can, over two connections.
func TestPaceOfOneProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &paces{l: limits{identifiedRate: 10_000, identifiedBurst: 8000}, of: map[string]*pace{}}
		places := connlimit.NewPlaces[string](connlimit.Options{})
		start := time.Now()
		done := make(chan struct{}, 2)
		for range 2 {
			client, server := net.Pipe()
			g := newGuardedConn(server)
			g.settle(places.Take("default/web-1", func() {}), p.take("default/web-1").limiter, func() { p.leave("default/web-1") })
			go func() {
				_, _ = client.Write(make([]byte, 6000))
				_ = client.Close()
			}()
			go func() {
				if n, err := io.Copy(io.Discard, g); n != 6000 || err != nil {
					t.Errorf("%d bytes are read, %v", n, err)
				}
				_ = g.Close()
				done <- struct{}{}
			}()
		}
		<-done
		<-done
		if took := time.Since(start).Round(10 * time.Millisecond); took != 400*time.Millisecond {
			t.Errorf("12000 bytes took %s, want 400ms at 10000 a second after a burst of 8000", took)
		}
		kept := func() int {
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.of)
		}
		if n := kept(); n != 1 {
			t.Errorf("%d paces are kept for who connects again, want 1", n)
		}
		time.Sleep(9 * time.Second)
		if n := kept(); n != 0 {
			t.Errorf("%d paces are kept for ever", n)
		}
	})
}

// TestCallsOfOneProxy sends more calls than a proxy may: only this proxy waits.
func TestCallsOfOneProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 10
		s := serve(t, limits{identifiedRate: 1, identifiedBurst: calls * callCost})
		pair, _ := s.certificate(time.Hour)
		other, _ := issue(t, s.authority, "other", time.Hour)
		atOnce := func(pair tls.Certificate) bool {
			began := time.Now()
			if err := s.check(s.tls(pair), &healthv1.HealthCheckRequest{}); err != nil {
				t.Error(err)
			}
			return time.Now().Equal(began)
		}
		made := 0
		for made <= calls && atOnce(pair) {
			made++
		}
		if made == 0 || made > calls {
			t.Errorf("%d calls were answered at once, want at most %d", made, calls)
		}
		if !atOnce(other) {
			t.Error("a call of another proxy waits")
		}
	})
}
