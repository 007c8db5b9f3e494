package handshakes

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// BenchmarkHandshake connects, waits for the first bytes of HTTP/2, and closes. Client and server share the CPUs.
func BenchmarkHandshake(b *testing.B) {
	s := serve(b, 0)
	plain := s.plain()
	for _, row := range []struct {
		name, address string
		identified    bool
	}{
		{"certificate/sonde", s.address, true},
		{"certificate/plain", plain, true},
		{"none/sonde", s.address, false},
		{"none/plain", plain, false},
	} {
		b.Run(row.name, func(b *testing.B) {
			b.ReportAllocs()
			config := s.tls(row.identified)
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					c, err := tls.Dial("tcp", row.address, config)
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

// BenchmarkHeld measures the server's memory for a connection of a stranger, with a thousand of them: -benchtime=1x.
func BenchmarkHeld(b *testing.B) {
	const conns, fewest = 1000, 256
	for _, row := range []struct {
		name   string
		first  []byte
		before int // connections that occupy the slots of handshakes
		memory uint64
	}{
		{"silent", nil, 0, 0},
		{"hello", hello(b), 0, 0},
		{"hello, and it waits", hello(b), fewest, 1}, // so little memory that there are the fewest slots
	} {
		b.Run(row.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				s := serve(b, row.memory)
				held := s.hold(row.before, row.first)
				before := memory()
				held = append(held, s.hold(conns, row.first)...)
				b.ReportMetric(float64(memory()-before)/conns, "B/conn")
				for _, c := range held {
					_ = c.Close()
				}
				b.StartTimer()
			}
		})
	}
}

// hold opens connections that send only first, and waits until they have arrived.
func (s *server) hold(n int, first []byte) (held []net.Conn) {
	s.b.Helper()
	before := s.unauthenticated()
	for range n {
		c, err := new(net.Dialer).DialContext(s.b.Context(), "tcp", s.address)
		if err != nil {
			s.b.Fatal(err)
		}
		if _, err := c.Write(first); err != nil {
			s.b.Fatal(err)
		}
		held = append(held, c)
	}
	wait.For(s.b, "the connections have arrived", func() bool { return s.unauthenticated() == before+float64(n) })
	return held
}

// hello returns a client's first bytes, a TLS record.
func hello(b *testing.B) []byte {
	b.Helper()
	client, server := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Client(client, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).HandshakeContext(context.Background()) // fails, without a server
	}()
	header := make([]byte, 5)
	if _, err := io.ReadFull(server, header); err != nil {
		b.Fatal(err)
	}
	record := make([]byte, binary.BigEndian.Uint16(header[3:]))
	if _, err := io.ReadFull(server, record); err != nil {
		b.Fatal(err)
	}
	_ = server.Close()
	<-done
	return append(header, record...)
}

// memory returns the bytes of heap and stack in use.
func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
