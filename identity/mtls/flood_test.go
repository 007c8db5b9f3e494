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
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sonde-mesh/sonde/internal/connlimit"
)

// hello returns what a client sends first.
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

// hold opens connections that send this and then nothing, and holds them until the test ends.
func (s *served) hold(n int, first []byte) (held []net.Conn) {
	s.t.Helper()
	for range n {
		c, err := net.Dial("tcp", s.address)
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = c.Close() })
		_, _ = c.Write(first) // it may be closed already
		held = append(held, c)
	}
	return held
}

// holdTLS is hold for connections that have no certificate, and do not go on after the handshake.
func (s *served) holdTLS(n int) {
	s.t.Helper()
	for range n {
		if c, err := tls.Dial("tcp", s.address, s.tls()); err == nil { // else others have taken its place
			s.t.Cleanup(func() { _ = c.Close() })
		}
	}
}

// TestHeldConnectionsKeepNobodyOut holds more connections of each kind than there are places, at the address of those who have a question.
func TestHeldConnectionsKeepNobodyOut(t *testing.T) {
	l := limits{
		arrivals: 8, handshakes: 4, unauthenticated: 4, patience: 100 * time.Millisecond, maxPatience: 200 * time.Millisecond,
		helloTimeout: time.Minute, handshakeTimeout: time.Minute, unauthenticatedLife: time.Minute,
	}
	started := hello(t)
	for name, hold := range map[string]func(s *served){
		"silent":                        func(s *served) { s.hold(50, nil) },
		"one byte":                      func(s *served) { s.hold(50, []byte{recordHandshake}) },
		"half a hello":                  func(s *served) { s.hold(50, started[:len(started)/2]) },
		"a hello that is announced":     func(s *served) { s.hold(50, []byte{recordHandshake, 3, 1, 0x40, 0}) },
		"half a handshake":              func(s *served) { s.hold(50, started) },
		"no certificate":                func(s *served) { s.holdTLS(8) },
		"all of these":                  func(s *served) { s.hold(20, nil); s.hold(20, started); s.holdTLS(8); s.hold(20, started) },
		"another protocol, and no more": func(s *served) { s.hold(50, []byte("GET / HTTP/1.1\r\n")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, l)
			pair, _ := s.certificate(time.Hour)
			hold(s)
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
		})
	}
}

// TestWaitingEnds has others keep the only place of each kind.
func TestWaitingEnds(t *testing.T) {
	for name, hold := range map[string]func(s *served){
		"handshakes":      func(s *served) { s.hold(2, hello(t)) },
		"unauthenticated": func(s *served) { s.holdTLS(2) },
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, limits{handshakes: 1, unauthenticated: 1, patience: time.Minute, maxPatience: time.Minute, waitTimeout: 50 * time.Millisecond})
			hold(s)
			s.counts(closedLimit, 1)
		})
	}
}

func TestCallsWithoutACertificate(t *testing.T) {
	s := serve(t, limits{})
	conn, err := grpc.NewClient("passthrough:///"+s.address, grpc.WithTransportCredentials(credentials.NewTLS(s.tls())))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	for method, want := range map[string]string{
		healthv1.Health_Check_FullMethodName: "",
		healthv1.Health_List_FullMethodName:  "rpc error: code = Unauthenticated desc = " + errUnauthenticated.Error(),
	} {
		got := ""
		if err := conn.Invoke(t.Context(), method, &healthv1.HealthListRequest{}, &healthv1.HealthListResponse{}); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", method, got, want)
		}
	}
}

// TestConnectionsOfOneProxy opens more connections than one proxy may have: those with a call stay for as long as there are others.
func TestConnectionsOfOneProxy(t *testing.T) {
	s := serve(t, limits{identified: 3})
	pair, _ := s.certificate(time.Hour)
	called := s.watch(s.tls(pair))
	s.caller()
	for range 10 {
		c, err := tls.Dial("tcp", s.address, s.tls(pair))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	s.counts(closedIdentity, 8)
	select {
	case e := <-called:
		t.Errorf("the connection with a call ended: %v", e.err)
	default:
	}
	newest := s.watch(s.tls(pair))
	s.caller()
	for range 2 {
		s.watch(s.tls(pair))
		s.caller()
	}
	select {
	case <-called: // all have a call: the oldest
	case e := <-newest:
		t.Errorf("a newer connection ended: %v", e.err)
	case <-time.After(patience):
		t.Error("four connections go on")
	}
}

func TestCloseEndsWhatIsNotIdentified(t *testing.T) {
	s := serve(t, limits{handshakes: 1, patience: time.Minute, maxPatience: time.Minute, helloTimeout: time.Minute, handshakeTimeout: time.Minute})
	pair, _ := s.certificate(time.Hour)
	stays := s.watch(s.tls(pair))
	s.caller()
	held := s.hold(2, nil)
	held = append(held, s.hold(2, hello(t))...)
	s.credentials.Close()
	for _, c := range held {
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, c); isTimeout(err) {
			t.Error("a connection goes on")
		}
	}
	select {
	case e := <-stays:
		t.Errorf("the connection of a proxy ended: %v", e.err)
	default:
	}
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error) //nolint:errorlint // that of a net.Conn
	return ok && timeout.Timeout()
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
		<-time.After(9 * time.Second)
		if n := kept(); n != 0 {
			t.Errorf("%d paces are kept for ever", n)
		}
	})
}

// TestCallsOfOneProxy makes more calls than a proxy may: it waits, and no other does.
func TestCallsOfOneProxy(t *testing.T) {
	const calls = 10
	s := serve(t, limits{identifiedRate: 1, identifiedBurst: calls * callCost})
	pair, _ := s.certificate(time.Hour)
	other, _ := issue(t, s.authority, "other", time.Hour)
	check := func(pair tls.Certificate, deadline time.Duration) error {
		conn, err := grpc.NewClient("passthrough:///"+s.address, grpc.WithTransportCredentials(credentials.NewTLS(s.tls(pair))))
		if err != nil {
			return err
		}
		defer conn.Close() //nolint:errcheck // nothing more is sent
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
		return err
	}
	if err := check(pair, patience); err != nil {
		t.Errorf("the first call: %v", err)
	}
	made := 1
	for made <= calls && check(pair, time.Second) == nil { // one that waits gets no answer for a second
		made++
	}
	if made > calls {
		t.Errorf("%d calls were answered at once, want at most %d", made, calls)
	}
	if err := check(other, patience); err != nil {
		t.Errorf("a call of another proxy: %v", err)
	}
}
