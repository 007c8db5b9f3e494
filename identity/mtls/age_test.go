package mtls

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
)

// aged returns how many connections are counted as such.
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

// TestAgedConnectionsAreCounted has connections end by their age, and others as the last of them does, which are not counted.
func TestAgedConnectionsAreCounted(t *testing.T) {
	aged := make(chan bool, 10) // of the streams that have ended
	s := serve(t, limits{}, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: time.Second, MaxConnectionAgeGrace: 100 * time.Millisecond}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			defer func() { aged <- Aged(stream.Context()) }()
			return next(srv, stream)
		}))
	pair, _ := s.certificate(time.Hour)
	for range 2 {
		end := s.watch(s.tls(pair))
		select {
		case <-end:
		case <-time.After(patience):
			t.Fatal("the connection goes on")
		}
		if !<-aged {
			t.Error("the handler does not know that the connection has reached its age")
		}
	}
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for s.aged() != 2 {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%v connections are counted, want 2", s.aged())
		}
	}
}

// TestOtherConnectionsAreNotCounted has one connection end before its certificate does, and one with the GOAWAY of a server that stops.
func TestOtherConnectionsAreNotCounted(t *testing.T) {
	s := serve(t, limits{}, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: time.Hour}))
	short, _ := s.certificate(2 * time.Second)
	<-s.watch(s.tls(short))
	s.counts(closedExpiring, 1)
	lasting, _ := s.certificate(time.Hour)
	conn, err := grpc.NewClient("passthrough:///"+s.address, grpc.WithTransportCredentials(credentials.NewTLS(s.tls(lasting))))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	s.stop()
	if got := s.aged(); got != 0 {
		t.Errorf("%v connections are counted, want none", got)
	}
}

// FuzzFrames writes HTTP/2 frames in pieces of one size. The GOAWAYs that are found are those of the whole.
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
		want, whole := 0, 0
		for at := 0; len(written)-at >= frameHeader; {
			size := frameHeader + int(written[at])<<16 + int(written[at+1])<<8 + int(written[at+2])
			if len(written)-at < size {
				break
			}
			payload := written[at+frameHeader : at+size]
			if written[at+3] == byte(http2.FrameGoAway) && len(payload) > goAwayFields && string(payload[goAwayFields:]) == maxAge {
				want++
			}
			at += size
			whole = at
		}
		written = written[:whole]
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
