// Command app is the application that tests and the demo run behind a sidecar. It serves each protocol of a mesh, and
// its responses name the instance and describe the caller. Its control port changes its responses, and makes it call
// other applications.
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
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/test/harness"
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
	grace := flags.Duration("grace", 0, "serve on for so long when asked to end, and then let requests end")
	service := flags.String("grpc-service", "", "name of a gRPC service that is SERVING, beside the empty one")
	once := flags.String("call", "", "only call this `URL` once, and end")
	probed := flags.String("case", "", "only serve the fidelity test's case of this `name`")
	casePort := flags.Int("case-port", 20000, "first `port` of the case")
	addresses := map[string]*string{}
	for _, protocol := range []string{"http", "grpc", "tcp", "banner", "control"} {
		addresses[protocol] = flags.String(protocol, "", "`address` to serve "+protocol+" on")
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *once != "" {
		return callOnce(ctx, *once)
	}
	if *probed != "" {
		return serveCase(ctx, *probed, *casePort)
	}
	s := newState(*name, *grace)
	s.serving(*service)
	ctx, cancel := after(ctx, *grace)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	doors := map[string]*door{}
	control := &control{state: s, ctx: ctx, doors: doors, loads: map[string]*harness.Load{}}
	servers := map[string]server{
		"http":    httpServer(s),
		"grpc":    grpcServer(s),
		"tcp":     tcpServer(s, ""),
		"banner":  tcpServer(s, "220 "+*name+"\r\n"),
		"control": control.serve,
	}
	for protocol, serve := range servers {
		if *addresses[protocol] == "" {
			continue
		}
		doors[protocol] = &door{address: *addresses[protocol], serve: func(l net.Listener) {
			group.Go(func() error {
				if err := serve(ctx, l); err != nil && !errors.Is(err, net.ErrClosed) {
					return fmt.Errorf("serve %s: %w", protocol, err)
				}
				return nil
			})
		}}
	}
	for protocol, d := range doors {
		if err := d.open(ctx); err != nil {
			return fmt.Errorf("listen for %s: %w", protocol, err)
		}
	}
	group.Go(func() error { // the application runs on with all ports closed
		<-ctx.Done()
		return nil
	})
	return group.Wait()
}

// after returns a context that ends some time after its parent.
func after(parent context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	stop := context.AfterFunc(parent, func() {
		select {
		case <-time.After(grace):
		case <-ctx.Done():
		}
		cancel()
	})
	return ctx, func() {
		stop()
		cancel()
	}
}

// callOnce makes one HTTP request, and prints which instance responded.
func callOnce(ctx context.Context, url string) error {
	caller := harness.NewHTTPCaller(url, false, false)
	instance, err := caller.Call(ctx)
	if err != nil {
		return err
	}
	fmt.Println("answered by", instance)
	return nil
}
