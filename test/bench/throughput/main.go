// Command throughput measures what requests and bytes get through two proxies of a mesh, with mTLS, by the configuration of this control plane and
// by that of another one, in turns: what the limits of Envoy cost.
package main

import (
	"context"
	"flag"
	"regexp"
	"time"

	"github.com/sonde-mesh/sonde/test/bench/rig"
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
	rig.Main("throughput", func(ctx context.Context) (err error) {
		if o.only, err = regexp.Compile(*only); err != nil {
			return err
		}
		return measure(ctx, o)
	})
}
