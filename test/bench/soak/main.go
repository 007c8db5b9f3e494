// Command soak changes a mesh at random for minutes and breaks what can break. Proxies come and go, stop reading, stop
// answering, refuse resources, or vanish. Files are broken, half written, renamed and removed. The control plane is killed every
// minute. From time to time everything is mended: then each proxy must have what the files say, and some that begin with
// nothing, too. At the end the control plane must hold nothing of proxies that are gone.
//
//	go run ./bench/soak                            # ten minutes, with a new seed
//	go run ./bench/soak --seed=7 --duration=2m     # repeat a seed
//
// A seed decides each operation and when it is due, but not how processes are scheduled.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/test/bench/sondecp"
)

// options of a run.
type options struct {
	seed              uint64
	duration          time.Duration
	proxies, services int
}

func (o options) String() string {
	return fmt.Sprintf("--seed=%d --duration=%s --proxies=%d --services=%d", o.seed, o.duration, o.proxies, o.services)
}

func main() {
	var o options
	flag.Uint64Var(&o.seed, "seed", 0, "decides what happens; 0 takes one at random")
	flag.DurationVar(&o.duration, "duration", 10*time.Minute, "how long operations go on; the search for leaks comes after")
	flag.IntVar(&o.proxies, "proxies", 200, "proxies")
	flag.IntVar(&o.services, "services", 100, "services")
	flag.Parse()
	for o.seed == 0 {
		o.seed = rand.Uint64()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench/soak: %v\nfailed: run again with %s\n", err, o)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) error {
	if o.duration < 10*time.Second || o.proxies < 2*prodShare || o.services < 2*prodShare {
		return fmt.Errorf("too little: duration from 10s, proxies and services from %d", 2*prodShare)
	}
	program, err := sondecp.Build(ctx)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "soak %s\n", o)
	own := goleak.IgnoreCurrent()
	s, err := newSoak(ctx, o, program, out)
	if err != nil {
		return err
	}
	err = errors.Join(s.play(ctx), s.end(), ctx.Err())
	s.summary()
	if err != nil {
		_, _ = fmt.Fprintf(out, "what was done, the logs and the files are in %s\n", s.plane.Dir)
		return err
	}
	if err := errors.Join(s.plane.Close(), goleak.Find(own)); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, "every proxy had what it should, and nothing leaks")
	return err
}

// poll is the interval between two checks of something that is waited for.
const poll = 100 * time.Millisecond
