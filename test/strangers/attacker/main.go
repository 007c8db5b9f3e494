// Command attacker keeps connections open to a port, from many addresses of this machine, and replaces each
// connection that is closed, until its input ends. It repeatedly prints how many it has opened.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
)

func main() {
	target := flag.String("target", "", "`host:port`")
	connections := flag.Int("connections", 1, "how many at a time")
	addresses := flag.Int("addresses", 1, "from how many")
	kind := flag.String("kind", "idle", "what they send: idle, http or http2")
	path := flag.String("path", "/", "of probes, for http")
	flag.Parse()
	shapes := shapesOf(*kind, *path)
	if *addresses < 1 || shapes == nil {
		fmt.Fprintf(os.Stderr, "attacker: %d addresses, kind %q: want one or more, and idle, http or http2\n", *addresses, *kind)
		os.Exit(2)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends or closes it
		stop()
	}()
	var opened atomic.Int64
	for n := range *connections {
		from := net.IPv4(127, 66, byte(n%*addresses/250), byte(1+n%*addresses%250))
		dialer := &net.Dialer{Timeout: time.Second, KeepAlive: -1, LocalAddr: &net.TCPAddr{IP: from}}
		go attack(ctx, dialer, *target, shapes[n%len(shapes)], &opened)
	}
	for wait(ctx, 50*time.Millisecond) {
		fmt.Println(opened.Load())
	}
}

// pause is the delay before a closed connection is replaced.
const pause = 400 * time.Millisecond

// attack keeps one connection open at a time.
func attack(ctx context.Context, dialer *net.Dialer, target string, s shape, opened *atomic.Int64) {
	for wait(ctx, pause) {
		if c, err := dialer.DialContext(ctx, "tcp", target); err == nil {
			opened.Add(1)
			hold(ctx, c, s)
		}
	}
}

// hold keeps a connection until the peer closes it.
func hold(ctx context.Context, c net.Conn, s shape) {
	writing, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s(writing, c)
	}()
	_, _ = io.Copy(io.Discard, c) // until FIN or a reset
	stop()
	_ = c.Close() // ends a blocked write
	<-ended
}
