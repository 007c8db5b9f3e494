package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// interval of messages about running steps.
const interval = 10 * time.Second

// progress writes a line when a step ends, and one about running steps in each interval.
type progress struct {
	out   io.Writer
	began time.Time

	mu      sync.Mutex
	running []*step
}

// step is a download or a build.
type step struct {
	name string
	unit string // unit of the count
	all  int    // total number, 0 if unknown
	done int
}

func (s *step) String() string {
	switch {
	case s.unit == "" || s.done == 0:
		return s.name
	case s.all > 0:
		return fmt.Sprintf("%s: %d of %d %s", s.name, s.done, s.all, s.unit)
	}
	return fmt.Sprintf("%s: %d %s", s.name, s.done, s.unit)
}

// say writes a line.
func (p *progress) say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line(text)
}

// line is say for callers that hold mu.
func (p *progress) line(text string) {
	_, _ = fmt.Fprintf(p.out, "[%3.0f s] %s\n", time.Since(p.began).Seconds(), text) // without a terminal, the error cannot be shown
}

// do runs a step, whose function calls count.
func (p *progress) do(s *step, run func(count func()) error) error {
	p.mu.Lock()
	p.running = append(p.running, s)
	p.mu.Unlock()
	err := run(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		s.done++
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = slices.DeleteFunc(p.running, func(r *step) bool { return r == s })
	if err == nil {
		s.all = 0
		p.line(s.String() + ", done")
	}
	return err
}

// report writes lines about running steps until the channel is closed.
func (p *progress) report(end <-chan struct{}) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-end:
			return
		case <-tick.C:
		}
		p.mu.Lock()
		var all []string
		for _, s := range p.running {
			all = append(all, s.String())
		}
		if len(all) > 0 {
			p.line(strings.Join(all, "; "))
		}
		p.mu.Unlock()
	}
}
