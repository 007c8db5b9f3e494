// Command probe measures what a probe through the agent costs. It compares the agent with the application asked directly, a
// proxy on raw connections, and the naive design. Each subject is a process of its own.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// options of a run.
type options struct {
	rounds, probes, entries, million int
	json                             string
}

func main() {
	var o options
	role := flag.String("role", "", "what this process is; \"\" runs the benchmark and starts the others")
	app := flag.String("app", "", "ports of the application, for subjects")
	flag.IntVar(&o.rounds, "rounds", 5, "how often each subject is measured")
	flag.IntVar(&o.probes, "probes", 1500, "probes of one measurement")
	flag.IntVar(&o.entries, "entries", 600, "probes in the table: each is asked less than 10 times per second")
	flag.IntVar(&o.million, "long", 1_000_000, "probes after which memory is measured again; 0 leaves that out")
	flag.StringVar(&o.json, "json", "", "`file` to write the figures to")
	flag.Parse()
	if err := run(*role, *app, o); err != nil {
		fmt.Fprintln(os.Stderr, "bench/probe:", err)
		os.Exit(1)
	}
}

func run(role, app string, o options) error {
	ctx := context.Background() // a signal ends each role at once
	switch role {
	case "":
		ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
		defer stop()
		return measure(ctx, o)
	case "app":
		return serveApp(ctx)
	case "client":
		return serveClient(ctx)
	}
	ports, err := parsePorts(app)
	if err != nil {
		return err
	}
	return serveSubject(ctx, role, ports)
}
