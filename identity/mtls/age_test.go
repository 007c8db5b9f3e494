package mtls

import (
	"bytes"
	"context"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// aged returns the number of counted aged connections.
func (s *served) aged() float64 {
	s.t.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "sonde_connections_aged_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	s.t.Fatal("there is no such metric")
	return 0
}

// TestAgedConnectionsAreCounted shows that only connections that end because of their age are counted.
func TestAgedConnectionsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aged := make(chan bool, 10) // errors of the ended streams
		s := serve(t, limits{}, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: time.Second, MaxConnectionAgeGrace: 100 * time.Millisecond}),
			grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				defer func() { aged <- Aged(stream.Context()) }()
				return next(srv, stream)
			}))
		pair, _ := s.certificate(time.Hour)
		for range 2 {
			wait.Receive(t, "the end of the connection", s.watch(s.tls(pair)))
			if !<-aged {
				t.Error("the handler does not know that the connection has reached its age")
			}
		}
		synctest.Wait()
		if got := s.aged(); got != 2 {
			t.Errorf("%v connections are counted, want two", got)
		}
	})
}

// TestOtherConnectionsAreNotCounted ends one connection before its certificate expires, and another by the GOAWAY of a
// stopping server.
func TestOtherConnectionsAreNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, limits{}, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: time.Hour}))
		short, _ := s.certificate(6 * time.Second)
		<-s.watch(s.tls(short))
		s.counts(closedExpiring, 1)
		lasting, _ := s.certificate(time.Hour)
		conn := s.client(s.tls(lasting))
		if _, err := healthv1.NewHealthClient(conn).Check(wait.Context(t), &healthv1.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
		s.stop()
		if got := s.aged(); got != 0 {
			t.Errorf("%v connections are counted, want none", got)
		}
	})
}

// wholeFrames returns the complete frames, and how many of them are the GOAWAY of an aged connection.
func wholeFrames(written []byte) (whole []byte, aged int) {
	at := 0
	for len(written)-at >= frameHeader {
		size := frameHeader + int(written[at])<<16 + int(written[at+1])<<8 + int(written[at+2])
		if len(written)-at < size {
			break
		}
		payload := written[at+frameHeader : at+size]
		if written[at+3] == byte(http2.FrameGoAway) && len(payload) > goAwayFields && string(payload[goAwayFields:]) == maxAge {
			aged++
		}
		at += size
	}
	return written[:at], aged
}

// FuzzFrames writes HTTP/2 frames in pieces of one size. The result must be the same as if they were written at once.
func FuzzFrames(f *testing.F) {
	add := func(piece uint8, write func(*http2.Framer) error) {
		var b bytes.Buffer
		framer := http2.NewFramer(&b, nil)
		if err := framer.WriteSettings(); err != nil {
			f.Fatal(err)
		}
		if err := write(framer); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes(), piece)
	}
	for _, piece := range []uint8{0, 1, 7, 9, 23} {
		for _, why := range []string{maxAge, "max_idle", "max_agf", "", "graceful_stop"} {
			add(piece, func(w *http2.Framer) error { return w.WriteGoAway(1<<31-1, http2.ErrCodeNo, []byte(why)) })
			add(piece, func(w *http2.Framer) error {
				if err := w.WriteData(1, false, []byte("\x00\x00\x0f\x07max_age")); err != nil {
					return err
				}
				return w.WriteGoAway(3, http2.ErrCodeNo, []byte(why))
			})
		}
		add(piece, func(w *http2.Framer) error { return w.WriteData(1, true, []byte(maxAge)) })
	}
	f.Fuzz(func(t *testing.T, written []byte, piece uint8) {
		written, want := wholeFrames(written)
		var got frames
		found := 0
		for part := range slices.Chunk(written, int(piece)+1) {
			if got.aged(part) {
				found++
			}
		}
		if found > want || (found > 0) != (want > 0) {
			t.Errorf("%d GOAWAYs found in pieces of %d bytes, want %d", found, int(piece)+1, want)
		}
		if got.have != 0 || got.skip != 0 {
			t.Errorf("after whole frames %d bytes of one are there, and %d are skipped", got.have, got.skip)
		}
	})
}

// watchUntilEnd opens a stream, and closes the connection after its end.
func watchUntilEnd(ctx context.Context, conn *grpc.ClientConn) {
	stream, err := healthv1.NewHealthClient(conn).Watch(ctx, &healthv1.HealthCheckRequest{})
	for err == nil {
		_, err = stream.Recv()
	}
	_ = conn.Close()
}

// TestConnectionsSpread begins with all clients on one of two servers, as after a restart of the other server. The
// clients spread over both as their connections age.
func TestConnectionsSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, otherAddress = 20, "10.1.0.3:5678"
		age := grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: time.Second, MaxConnectionAgeGrace: 100 * time.Millisecond})
		s := serve(t, limits{identified: 2 * clients}, age)
		listener, err := s.network.Listen(t.Context(), "tcp", otherAddress)
		if err != nil {
			t.Fatal(err)
		}
		other := grpc.NewServer(append(s.credentials.ServerOptions(), age)...)
		healthv1.RegisterHealthServer(other, health.NewServer())
		var running sync.WaitGroup
		running.Go(func() { _ = other.Serve(listener) })
		ctx, cancel := context.WithCancel(t.Context())
		defer func() { cancel(); other.Stop(); running.Wait() }()

		var moved [2]atomic.Int32 // number of clients by the server of their second connection
		pair, _ := s.certificate(time.Hour)
		for range clients {
			running.Go(func() {
				for dials := 0; ctx.Err() == nil; dials++ {
					to := 0
					if dials > 0 {
						to = mathrand.IntN(2)
					}
					if dials == 1 {
						moved[to].Add(1)
					}
					watchUntilEnd(ctx, s.clientOf([]string{serverAddress, otherAddress}[to], s.tls(pair)))
				}
			})
		}
		running.Go(func() { // no other goroutine reads moved meanwhile
			for {
				select {
				case <-s.callers:
				case <-ctx.Done():
					return
				}
			}
		})
		wait.Until(t, "all have moved", func() error {
			if a, b := moved[0].Load(), moved[1].Load(); a+b != clients {
				return fmt.Errorf("%d to the first, and %d to the other", a, b)
			}
			return nil
		})
		if a, b := moved[0].Load(), moved[1].Load(); a == 0 || b == 0 {
			t.Errorf("%d have moved to the first, and %d to the other: want them spread", a, b)
		}
		synctest.Wait()
		if aged := s.aged(); aged < clients {
			t.Errorf("%v connections have reached their age, want %d or more", aged, clients)
		}
	})
}
