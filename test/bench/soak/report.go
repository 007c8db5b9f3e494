package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// counts of a run.
type counts struct {
	operations                [64]atomic.Int64 // by index in operations
	killed, terminated        atomic.Int64
	streams                   atomic.Int64 // that began
	lostStreams, refusedConns atomic.Int64
	responses, resources      atomic.Int64
	bytes                     atomic.Int64
	nacks                     atomic.Int64
	checks, rests             atomic.Int64
	usage                     []usage
}

// progress reports the counts every ten seconds.
func (s *soak) progress(ctx context.Context) {
	began := time.Now()
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		connected := 0
		for _, m := range s.members {
			if m.connected.Load() {
				connected++
			}
		}
		_, _ = fmt.Fprintf(s.out, "%4.0fs: %d operations, %d of %d proxies connected, %d starts of the control plane, %d responses, %d rests\n",
			time.Since(began).Seconds(), s.counts.all(), connected, len(s.members), s.plane.generation.Load(),
			s.counts.responses.Load(), s.counts.rests.Load())
	}
}

func (c *counts) all() (n int64) {
	for i := range c.operations {
		n += c.operations[i].Load()
	}
	return n
}

// summary reports the counts of the whole run.
func (s *soak) summary() {
	c := &s.counts
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format+"\n", args...) }
	say("operations: %d", c.all())
	for i, o := range operations {
		say("  %-24s %6d", o.name, c.operations[i].Load())
	}
	say("control plane: killed %d times, told to end %d times", c.killed.Load(), c.terminated.Load())
	say("proxies: %d streams, %d lost, %d connections refused, %d versions refused", c.streams.Load(), c.lostStreams.Load(),
		c.refusedConns.Load(), c.nacks.Load())
	say("received: %d responses, %d resources, %d MiB", c.responses.Load(), c.resources.Load(), c.bytes.Load()>>20)
	say("checked: %d rests, %d looks at what a proxy has", c.rests.Load(), c.checks.Load())
	for i, l := range c.usage {
		say("the control plane at rest after %d rounds: %s", i, l)
	}
}
