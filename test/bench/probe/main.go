// Command probe measures what a probe through the agent costs. It compares the agent with the application asked directly, a
// proxy on raw connections, and the naive design. Each subject is a process of its own.
package main

import (
	"context"
	"flag"

	"github.com/sonde-mesh/sonde/test/bench/rig"
)

// options of a run.
type options struct {
	rounds, probes, entries, million int
}

func main() {
	var o options
	role := flag.String("role", "", "what this process is; \"\" runs the benchmark and starts the others")
	app := flag.String("app", "", "ports of the application, for subjects")
	flag.IntVar(&o.rounds, "rounds", 5, "how often each subject is measured")
	flag.IntVar(&o.probes, "probes", 1500, "probes of one measurement")
	flag.IntVar(&o.entries, "entries", 600, "probes in the table: each is asked less than 10 times per second")
	flag.IntVar(&o.million, "long", 1_000_000, "probes after which memory is measured again; 0 leaves that out")
	flag.Parse()
	rig.Main("probe", func(ctx context.Context) error { return run(ctx, *role, *app, o) })
}

func run(ctx context.Context, role, app string, o options) error {
	switch role {
	case "":
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
