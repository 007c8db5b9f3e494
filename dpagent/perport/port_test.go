package perport_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sonde-mesh/sonde/dpagent/perport"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func only(p perport.Port) perport.Config { return perport.Config{Ports: []perport.Port{p}} }

func TestPortIsOpenWhileTheApplicationIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		app := s.apply(appAt)
		s.set(only(perport.Port{Address: first, Application: appAt}))
		for range 2 {
			s.wantOpen(first)
			app.stop()
			s.wantOpen(first) // until the next check
			s.wait()
			s.wantClosed(first)
			if err := s.Ready(t.Context()); err != nil {
				t.Errorf("Ready() = %v: a closed application must not fail the agent", err)
			}
			app.open()
			s.wait()
		}
		s.wantOpen(first)
		connections, bytes := app.seen()
		if connections != 3 || bytes > 0 {
			t.Errorf("the application received %d connections and %d bytes, want 3 and 0", connections, bytes)
		}
		s.end()
		s.wantClosed(first)
		if succeeded, failed := s.verdicts("success"), s.verdicts("failure"); succeeded != 3 || failed != 2 {
			t.Errorf("sonde_probe_total has %d successes and %d failures, want 3 and 2", succeeded, failed)
		}
	})
}

func TestApplicationIsAskedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		app := s.apply(appAt)
		s.set(only(perport.Port{Address: first, Application: appAt}))
		for second := range 5 {
			for range 20 { // callers cause no further checks
				s.wantOpen(first)
			}
			if n, _ := app.seen(); n != second+1 {
				t.Errorf("%d connections after %d s, want %d", n, second, second+1)
			}
			s.wait()
		}
	})
}

// TestApplicationThatDoesNotAnswer checks that the port closes when a check times out.
func TestApplicationThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		app := s.apply(appAt)
		s.set(only(perport.Port{Address: first, Application: appAt}))
		s.wantOpen(first)
		s.network.Isolate("127.0.0.9", true)
		s.wait()
		if n := s.verdicts("failure"); n != 0 {
			t.Errorf("%d checks failed at once", n)
		}
		s.wait()
		s.network.Isolate("127.0.0.9", false)
		if n := s.verdicts("failure"); n != 1 {
			t.Errorf("%d checks failed, want one", n)
		}
		s.wantClosed(first)
		s.wait()
		s.wantOpen(first)
		app.stop()
	})
}

// TestAgentThatCannotCheck checks that the port stays as it is if the agent fails, which says nothing about the
// application.
func TestAgentThatCannotCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		err   error
		ready string // part of Ready's error
	}{
		"no file descriptors": {syscall.EMFILE, "the agent cannot check the application: too many open files"},
		"too busy":            {probe.ErrLate, ""},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			var fault atomic.Pointer[error]
			s := start(t, func(o *perport.Options) {
				dial := o.Dial
				o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					if err := fault.Load(); err != nil {
						return nil, *err
					}
					return dial(ctx, network, address)
				}
			})
			app := s.apply(appAt)
			s.set(only(perport.Port{Address: first, Application: appAt}))
			fault.Store(&tc.err)
			app.stop()
			s.wait()
			s.wantOpen(first)
			if err := s.Ready(t.Context()); (err != nil) != (tc.ready != "") || err != nil && !strings.Contains(err.Error(), tc.ready) {
				t.Errorf("Ready() = %v, want %q", err, tc.ready)
			}
			fault.Store(nil)
			s.wait()
			s.wantClosed(first)
			if err := s.Ready(t.Context()); err != nil {
				t.Errorf("Ready() = %v when the agent can check again", err)
			}
		})
	}
}

func TestClientThatSpeaksIsReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		app := s.apply(appAt)
		s.set(only(perport.Port{Address: first, Application: appAt}))
		c := s.connect(first)
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := end(c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("its connection: error = %v, want a reset", err)
		}
		if _, bytes := app.seen(); bytes > 0 {
			t.Errorf("the application got %d bytes", bytes)
		}
	})
}

func TestSilentClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		s.apply(appAt)
		s.set(only(perport.Port{Address: first, Application: appAt}))
		c := s.connect(first)
		<-time.After(5*time.Second - time.Nanosecond)
		if err := end(c); err != nil {
			t.Errorf("its connection: error = %v, want it open for 5s", err)
		}
		s.wait()
		if err := end(c); !errors.Is(err, io.EOF) {
			t.Errorf("its connection: error = %v, want its end after 5s", err)
		}
	})
}

// TestGRPC has one port for both protocols, which follows the application, and one for gRPC only, which does not.
func TestGRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, either, alone := start(t), first, second
		s.set(perport.Config{Ports: []perport.Port{
			{Address: either, Application: appAt, GRPC: true, Asked: appAt},
			{Address: alone, Application: appAt, GRPC: true, Asked: appAt, AlwaysOpen: true},
		}})
		s.wantOpen(alone)
		s.wantClosed(either)
		app := grpc.NewServer()
		healthpb.RegisterHealthServer(app, health.NewServer())
		l := s.listen(appAt)
		served := make(chan error, 1)
		go func() { served <- app.Serve(l) }()
		s.wait()
		for _, at := range []netip.AddrPort{either, alone} {
			if err := s.check(at); err != nil {
				t.Errorf("%s: %v", at, err)
			}
		}
		app.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		s.wait()
		s.wantClosed(either)
		s.wantOpen(alone)
		if err := s.check(alone); err == nil {
			t.Error("a call succeeds without an application")
		}
		s.end()
		s.wantClosed(alone)
	})
}

// check calls grpc.health.v1.Health/Check.
func (s *server) check(at netip.AddrPort) error {
	dial := func(context.Context, string) (net.Conn, error) { return s.dial(at) }
	conn, err := grpc.NewClient("passthrough:///"+at.String(), grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(s.t.Context(), period)
	defer cancel()
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err == nil && answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		err = errors.New(answer.GetStatus().String())
	}
	return err
}

// TestSilentClientsMakeRoom connects more clients than a port accepts.
func TestSilentClientsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		s.apply(appAt)
		s.set(only(perport.Port{Address: first, Application: appAt}))
		var silent []net.Conn
		for range perport.MaxVisitors + 1 {
			silent = append(silent, s.connect(first))
		}
		synctest.Wait()
		if err := end(silent[0]); !errors.Is(err, io.EOF) {
			t.Errorf("the first: error = %v, want its end without a reset", err)
		}
		for i, c := range silent[1:] {
			if err := end(c); err != nil {
				t.Errorf("number %d: error = %v, want it open", i+1, err)
			}
		}
	})
}

func TestPortOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		s.apply(appAt)
		other := s.listen(first)
		s.set(only(perport.Port{Address: first, Application: appAt}))
		for range 3 { // the agent retries, and logs the failure once
			if err := s.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "address already in use") {
				t.Errorf("Ready() = %v, want the reason that the port is closed", err)
			}
			s.wait()
		}
		if n := strings.Count(s.logs.String(), "address already in use"); n != 1 {
			t.Errorf("logged %d times, want once", n)
		}
		_ = other.Close()
		s.wait()
		s.wantOpen(first)
		if err := s.Ready(t.Context()); err != nil {
			t.Errorf("Ready() = %v after the other program has ended", err)
		}
	})
}

// TestVirtualPort configures ports that the handler of the agent's table has already opened.
func TestVirtualPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, func(o *perport.Options) { o.Virtual = first })
		s.apply(appAt)
		target := probe.Target{Asked: appAt, Application: appAt, Path: "/ready"}
		config := perport.Config{HTTP: first, Paths: map[string]probe.Target{"/1/ready": target}}
		s.set(config)
		if got, ok := s.TargetAt(first, "/1/ready"); !ok || got != target {
			t.Errorf("TargetAt() = %v, %t, want the target of the path", got, ok)
		}
		config.Ports = []perport.Port{{Address: first, Application: appAt}}
		s.set(config)
		if err := s.Ready(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "is the virtual port, on which the agent answers HTTP probes of its table") {
			t.Errorf("Ready() = %v, want the reason for the TCP port alone", err)
		}
		s.wantClosed(first)
		config.HTTP, config.Ports = second, nil
		s.set(config)
		s.wantOpen(second)
		if got, ok := s.TargetAt(first, "/1/ready"); ok {
			t.Errorf("TargetAt() of a removed port = %v", got)
		}
	})
}

func TestConfigsThatFollowEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		s.apply(appAt)
		moved := s.apply(netip.AddrPortFrom(appAt.Addr(), 8081))
		s.set(perport.Config{Ports: []perport.Port{{Address: first, Application: appAt}, {Address: second, Application: appAt}}})
		s.wantOpen(first, second)
		stays, goes := s.connect(first), s.connect(second)
		s.set(perport.Config{Ports: []perport.Port{{Address: first, Application: appAt}, {Address: second, Application: moved.at}}})
		if n, _ := moved.seen(); n != 1 {
			t.Errorf("the new application received %d checks, want one", n)
		}
		s.wantOpen(first, second)
		if err := end(stays); err != nil {
			t.Errorf("a connection to the unchanged port: error = %v, want it open", err)
		}
		if err := end(goes); !errors.Is(err, io.EOF) {
			t.Errorf("a connection to the changed port: error = %v, want its end", err)
		}
		s.set(perport.Config{})
		s.wantClosed(first, second)
		if err := end(stays); !errors.Is(err, io.EOF) {
			t.Errorf("a connection to a removed port: error = %v, want its end", err)
		}
	})
}
