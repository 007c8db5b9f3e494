// Command throughput measures what requests and bytes get through two proxies of a mesh, with mTLS, by the configuration of this control plane and
// by that of another one, in turns: what the limits of Envoy cost.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"
)

// options of a run.
type options struct {
	before string
	only   *regexp.Regexp
	rounds int
	time   time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.before, "before", "", "`path` of the other sonde-cp, such as that of the commit before; \"\" measures this one against itself")
	flag.IntVar(&o.rounds, "rounds", 9, "how often each workload is measured with each")
	flag.DurationVar(&o.time, "time", time.Second, "how long a measurement takes")
	only := flag.String("only", "", "regular `expression` for the names of workloads to measure")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if o.only, err = regexp.Compile(*only); err == nil {
		err = measure(ctx, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/throughput:", err)
		os.Exit(1)
	}
}
