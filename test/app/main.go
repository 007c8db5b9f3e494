// Command app is the application that tests and the demo put behind a sidecar. It speaks each protocol of a mesh, and its
// answers say which instance answered and what it knows of the caller.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "app:", err)
		os.Exit(1)
	}
}

// server serves one protocol until ctx ends, and then closes all connections.
type server func(ctx context.Context, l net.Listener) error

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("app", flag.ContinueOnError)
	name := flags.String("name", "app", "instance name in every answer")
	addresses := map[string]*string{}
	for _, protocol := range []string{"http", "grpc", "tcp", "banner"} {
		addresses[protocol] = flags.String(protocol, "", "`address` to serve "+protocol+" on")
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	servers := map[string]server{
		"http":   httpServer(*name),
		"grpc":   grpcServer(*name),
		"tcp":    tcpServer(""),
		"banner": tcpServer("220 " + *name + "\r\n"),
	}
	group, ctx := errgroup.WithContext(ctx)
	for protocol, serve := range servers {
		if *addresses[protocol] == "" {
			continue
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *addresses[protocol])
		if err != nil {
			return fmt.Errorf("listen for %s: %w", protocol, err)
		}
		group.Go(func() error {
			if err := serve(ctx, l); err != nil && !errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("serve %s: %w", protocol, err)
			}
			return nil
		})
	}
	return group.Wait()
}
