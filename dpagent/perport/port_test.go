package perport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sonde-mesh/sonde/dpagent/perport"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

func only(p perport.Port) perport.Config { return perport.Config{Ports: []perport.Port{p}} }

func TestPortIsOpenWhileTheApplicationIs(t *testing.T) {
	t.Parallel()
	s, at, app := start(t), freeAddress(t), apply(t, freeAddress(t))
	s.Set(only(perport.Port{Address: at, Application: app.at}))
	for range 2 {
		eventually(t, patience, func() error { return isOpen(t.Context(), at) })
		before := s.verdicts("failure")
		app.stop()
		eventually(t, patience, func() error {
			failed := s.verdicts("failure") - before
			err := isClosed(t.Context(), at)
			if err != nil && failed > 1 { // the second check comes after what the first has led to
				t.Fatalf("after %v checks that have failed: %v", failed, err)
			}
			return err
		})
		if err := s.Ready(t.Context()); err != nil {
			t.Errorf("Ready() = %v: an application that is closed is no fault of the agent", err)
		}
		app.open()
	}
	eventually(t, patience, func() error { return isOpen(t.Context(), at) })
	if _, bytes := app.seen(); bytes > 0 {
		t.Errorf("the application got %d bytes", bytes)
	}
	asked, _ := app.seen()
	s.end()
	if err := isClosed(t.Context(), at); err != nil {
		t.Errorf("after the end: %v", err)
	}
	if succeeded, failed := s.verdicts("success"), s.verdicts("failure"); int(succeeded) < asked-1 || failed < 2 { // one may be under way
		t.Errorf("sonde_probe_total has %v successes and %v failures, and the application was asked %d times and closed twice", succeeded, failed, asked)
	}
}

func TestApplicationIsAskedOnceASecond(t *testing.T) {
	t.Parallel()
	s, at, app := start(t), freeAddress(t), apply(t, freeAddress(t))
	s.Set(only(perport.Port{Address: at, Application: app.at}))
	eventually(t, patience, func() error { return isOpen(t.Context(), at) })
	began := time.Now()
	before, _ := app.seen()
	for range 20 { // callers make no difference
		if err := isOpen(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(4 * time.Second)
	after, _ := app.seen()
	took := time.Since(began)
	if most := int(took/time.Second) + 2; after-before > most || after == before { // one may be under way, and one be late
		t.Errorf("%d connections in %s, want 1 to %d", after-before, took, most)
	}
}

func TestClientThatSpeaksIsReset(t *testing.T) {
	t.Parallel()
	s, at, app := start(t), freeAddress(t), apply(t, freeAddress(t))
	s.Set(only(perport.Port{Address: at, Application: app.at}))
	eventually(t, patience, func() error { return isOpen(t.Context(), at) })
	c, err := dial(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if err := ended(c); err != nil {
		t.Error(err)
	}
	s.end()
	if _, bytes := app.seen(); bytes > 0 {
		t.Errorf("the application got %d bytes", bytes)
	}
}

// TestGRPC has a port for either protocol, which follows the application, and one for gRPC alone, which does not.
func TestGRPC(t *testing.T) {
	t.Parallel()
	s, either, alone := start(t), freeAddress(t), freeAddress(t)
	applicationAt := freeAddress(t)
	s.Set(perport.Config{Ports: []perport.Port{
		{Address: either, Application: applicationAt, GRPC: true, Asked: applicationAt},
		{Address: alone, Application: applicationAt, GRPC: true, Asked: applicationAt, AlwaysOpen: true},
	}})
	eventually(t, patience, func() error { return isOpen(t.Context(), alone) })
	if err := isClosed(t.Context(), either); err != nil {
		t.Error(err)
	}
	app := grpc.NewServer()
	healthpb.RegisterHealthServer(app, health.NewServer())
	l := listen(t, applicationAt)
	served := make(chan error, 1)
	go func() { served <- app.Serve(l) }()
	for _, at := range []netip.AddrPort{either, alone} {
		eventually(t, patience, func() error { return check(t.Context(), at) })
	}
	app.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	eventually(t, patience, func() error { return isClosed(t.Context(), either) })
	if err := isOpen(t.Context(), alone); err != nil {
		t.Error(err)
	}
	if err := check(t.Context(), alone); err == nil {
		t.Error("a call succeeds, and there is no application")
	}
	s.end()
	if err := isClosed(t.Context(), alone); err != nil {
		t.Error(err)
	}
}

// check calls grpc.health.v1.Health/Check.
func check(ctx context.Context, at netip.AddrPort) error {
	conn, err := grpc.NewClient(at.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err == nil && answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		err = errors.New(answer.GetStatus().String())
	}
	return err
}

// TestSilentClientsMakeRoom has more clients than may be there at once.
func TestSilentClientsMakeRoom(t *testing.T) {
	t.Parallel()
	s, at, app := start(t), freeAddress(t), apply(t, freeAddress(t))
	s.Set(only(perport.Port{Address: at, Application: app.at}))
	eventually(t, patience, func() error { return isOpen(t.Context(), at) })
	var silent []net.Conn
	for range perport.MaxVisitors + 1 {
		c, err := dial(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }() //nolint:gocritic // all stay open until the end
		silent = append(silent, c)
	}
	if err := ended(silent[0]); err != nil {
		t.Errorf("the first: %v", err)
	}
	last := silent[perport.MaxVisitors]
	_ = last.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := last.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("the last: %v, want a connection that is open", err)
	}
}

func TestPortOfAnother(t *testing.T) {
	t.Parallel()
	s, app := start(t), apply(t, freeAddress(t))
	other := listen(t, netip.MustParseAddrPort("127.0.0.1:0"))
	at := other.Addr().(*net.TCPAddr).AddrPort()
	s.Set(only(perport.Port{Address: at, Application: app.at}))
	eventually(t, patience, func() error {
		if err := s.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "address already in use") {
			return fmt.Errorf("want why the port cannot be opened, not: %w", err)
		}
		return nil
	})
	<-time.After(1100 * time.Millisecond) // it is tried again, and not logged again
	if n := strings.Count(s.logs.String(), "address already in use"); n != 1 {
		t.Errorf("logged %d times, want once", n)
	}
	_ = other.Close()
	eventually(t, patience, func() error { return isOpen(t.Context(), at) })
	eventually(t, patience, func() error { return s.Ready(t.Context()) })
}

// TestVirtualPort has ports that the handler of the agent's table has open.
func TestVirtualPort(t *testing.T) {
	t.Parallel()
	at, app := freeAddress(t), apply(t, freeAddress(t))
	s := startBeside(t, at)
	target := probe.Target{Asked: app.at, Application: app.at, Path: "/ready"}
	config := perport.Config{HTTP: at, Paths: map[string]probe.Target{"/1/ready": target}}
	s.Set(config)
	if got, ok := s.TargetAt(at, "/1/ready"); !ok || got != target {
		t.Errorf("TargetAt() = %v, %t, want what the path is for", got, ok)
	}
	config.Ports = []perport.Port{{Address: at, Application: app.at}}
	s.Set(config)
	eventually(t, patience, func() error {
		if err := s.Ready(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "it is the virtual port, on which the agent answers HTTP probes of its table") {
			return fmt.Errorf("want why the port for TCP cannot be opened, and nothing of HTTP, not: %w", err)
		}
		return nil
	})
	if err := isClosed(t.Context(), at); err != nil {
		t.Error(err)
	}
	config.HTTP, config.Ports = freeAddress(t), nil
	s.Set(config)
	eventually(t, patience, func() error { return isOpen(t.Context(), config.HTTP) })
	if got, ok := s.TargetAt(at, "/1/ready"); ok {
		t.Errorf("TargetAt() of a port that has nothing any more = %v", got)
	}
}

func TestConfigsThatFollowEachOther(t *testing.T) {
	t.Parallel()
	s, first, second, app := start(t), freeAddress(t), freeAddress(t), apply(t, freeAddress(t))
	s.Set(perport.Config{Ports: []perport.Port{{Address: first, Application: app.at}, {Address: second, Application: app.at}}})
	for _, at := range []netip.AddrPort{first, second} {
		eventually(t, patience, func() error { return isOpen(t.Context(), at) })
	}
	c, err := dial(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	moved := apply(t, freeAddress(t))
	s.Set(perport.Config{Ports: []perport.Port{{Address: first, Application: app.at}, {Address: second, Application: moved.at}}})
	eventually(t, patience, func() error {
		if n, _ := moved.seen(); n == 0 {
			return errors.New("the new application has not been asked")
		}
		return isOpen(t.Context(), second)
	})
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("a connection to the port that stays: %v, want it to be open", err)
	}

	s.Set(perport.Config{})
	for _, at := range []netip.AddrPort{first, second} {
		eventually(t, patience, func() error { return isClosed(t.Context(), at) })
	}
	if err := ended(c); err != nil {
		t.Errorf("a connection to a port that is gone: %v", err)
	}
}

// BenchmarkCheck is what an open port costs each second.
func BenchmarkCheck(b *testing.B) {
	check, err := probe.NewTCPCheck(apply(b, freeAddress(b)).at, time.Second, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := check(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
