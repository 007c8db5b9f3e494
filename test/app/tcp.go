package main

import (
	"context"
	"io"
	"net"
	"sync"
)

// tcpServer sends the greeting, if any, before it reads. Then it echoes bytes until the client closes its side.
func tcpServer(state *state, greeting string) server {
	return func(ctx context.Context, l net.Listener) error {
		var wait sync.WaitGroup
		defer wait.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stop := context.AfterFunc(ctx, func() { _ = l.Close() })
		defer stop()
		for {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			state.count("tcp")
			wait.Go(func() {
				stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
				defer stop()
				defer func() { _ = conn.Close() }()
				if _, err := io.WriteString(conn, greeting); err == nil {
					_, _ = io.Copy(conn, conn) // an error means that the client has disconnected
				}
			})
		}
	}
}
