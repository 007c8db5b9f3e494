package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
)

// plane is the control plane: one process after the other, on the same ports and with the same state.
type plane struct {
	*harness.Machine
	s          *soak
	generation atomic.Int64 // number of processes so far
	up         atomic.Bool  // a process runs and has not been told to end
}

// begin starts the process, and does not wait until it serves.
func (p *plane) begin() error {
	if err := p.LaunchControlPlane(); err != nil {
		return err
	}
	p.watch()
	return nil
}

// watch reports the end of the process that was just started if it ends by itself.
func (p *plane) watch() {
	process, generation := p.ControlPlane, p.generation.Add(1)
	p.up.Store(true)
	go func() {
		<-process.Done()
		if p.up.Load() && p.generation.Load() == generation {
			p.s.wrong("the control plane ends by itself; it says: %s", p.Logs(30))
		}
	}()
}

// kill ends the process at once.
func (p *plane) kill() {
	if p.up.Swap(false) {
		p.ControlPlane.Kill()
	}
}

// endWithin is how long a process may take to end when it is told to.
const endWithin = 20 * time.Second

// terminate tells the process to end, which it must do in time and without an error.
func (p *plane) terminate(ctx context.Context) error {
	if !p.up.Swap(false) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	if err := p.ControlPlane.Terminate(ctx); err != nil {
		return fmt.Errorf("%w; it says: %s", err, p.Logs(30))
	}
	return nil
}

// complaints is an error if a process has logged what it must not.
func (p *plane) complaints() error {
	logs, err := p.LogFiles()
	for _, log := range logs {
		for _, words := range []string{"panic:", "fatal error:", "resource generation failed", "DATA RACE"} {
			if _, after, found := strings.Cut(log, words); found {
				err = errors.Join(err, fmt.Errorf("the control plane says: %s%.1000s", words, after))
			}
		}
	}
	return err
}
