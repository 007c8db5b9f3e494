// Command soak changes a mesh at random for minutes and breaks what can break. Proxies come and go, stop reading, stop
// answering, refuse resources, or vanish. Files are broken, half written, moved and removed. The control plane is killed every
// minute. From time to time everything is mended: then each proxy must have what the files say, and what a new proxy gets.
// At the end the control plane must hold nothing of proxies that are gone.
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
	"runtime"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/retry"
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

func run(ctx context.Context, o options, out io.Writer) (err error) {
	if o.duration < 10*time.Second || o.proxies < 2*prodShare || o.services < 2*prodShare {
		return fmt.Errorf("too little: duration from 10s, proxies and services from %d", 2*prodShare)
	}
	program, err := sondecp.Build(ctx)
	if err != nil {
		return err
	}
	directory, err := os.MkdirTemp("", "bench-soak-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_, _ = fmt.Fprintf(out, "what was done, the logs and the files are in %s\n", directory)
			return
		}
		err = os.RemoveAll(directory)
	}()
	_, _ = fmt.Fprintf(out, "soak %s\n", o)
	before := runtime.NumGoroutine()
	s, err := newSoak(o, program, directory, out)
	if err != nil {
		return err
	}
	err = s.play(ctx)
	err = errors.Join(err, s.end())
	s.summary()
	if err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	if err := noneLeaks(ctx, before); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, "every proxy had what it should, and nothing leaks")
	return err
}

// noneLeaks checks that every goroutine of the clients has ended.
func noneLeaks(ctx context.Context, before int) error {
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return nil
		}
		if err := retry.Wait(ctx, poll); err != nil {
			return err
		}
	}
	stacks := make([]byte, 1<<20)
	return fmt.Errorf("the clients leave %d goroutines, before them there were %d:\n%s", runtime.NumGoroutine(), before,
		stacks[:runtime.Stack(stacks, true)])
}

// poll is the interval between two checks of something that is waited for.
const poll = 100 * time.Millisecond
