package mtls

import (
	"crypto/tls"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// plain serves gRPC with TLS alone, as a floor.
func (s *served) plain() (address string) {
	s.t.Helper()
	config := s.serving.TLS().Clone()
	config.ClientAuth = tls.RequestClientCert
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)))
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = g.Serve(listener)
	}()
	s.t.Cleanup(func() {
		g.Stop()
		<-served
	})
	return listener.Addr().String()
}

// BenchmarkHandshake connects, waits for the first bytes of HTTP/2, and closes. Client and server share the processors.
func BenchmarkHandshake(b *testing.B) {
	s := serve(b, limits{})
	pair, _ := s.certificate(time.Hour)
	plain := s.plain()
	for _, row := range []struct {
		name, address string
		config        *tls.Config
	}{
		{"certificate/sonde", s.address, s.tls(pair)},
		{"certificate/plain", plain, s.tls(pair)},
		{"none/sonde", s.address, s.tls()},
		{"none/plain", plain, s.tls()},
	} {
		b.Run(row.name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					c, err := tls.Dial("tcp", row.address, row.config)
					if err != nil {
						b.Error(err)
						return
					}
					if _, err := c.Read(make([]byte, 1)); err != nil {
						b.Error(err)
					}
					_ = c.Close()
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "handshakes/s")
		})
	}
}

// BenchmarkHeld measures the memory that the server keeps for a connection of a stranger, with a thousand of them: -benchtime=1x.
func BenchmarkHeld(b *testing.B) {
	const conns = 1000
	for _, row := range []struct {
		name       string
		first      []byte
		handshakes int
	}{
		{"silent", nil, 0},
		{"hello", hello(b), conns},
		{"hello, and it waits", hello(b), 1},
	} {
		b.Run(row.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s := serve(b, limits{handshakes: row.handshakes, helloTimeout: time.Minute, handshakeTimeout: time.Minute, waitTimeout: time.Minute, patience: time.Minute})
				before := memory()
				held := s.hold(conns, row.first)
				for deadline := time.Now().Add(patience); testutil.ToFloat64(s.credentials.metrics.unauthenticated) < conns; <-time.After(time.Millisecond) {
					if time.Now().After(deadline) {
						b.Fatal("the connections have not arrived")
					}
				}
				b.ReportMetric(float64(memory()-before)/conns, "B/conn")
				for _, c := range held {
					_ = c.Close()
				}
				b.StartTimer()
			}
		})
	}
}

// memory returns how much heap and stack is in use, in bytes.
func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
