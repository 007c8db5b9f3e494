package main

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/retry"
	"github.com/sonde-mesh/sonde/test/bench/proc"
	"github.com/sonde-mesh/sonde/test/bench/rig"
)

// process is a subject or the client process.
type process struct {
	*rig.Process
	address string
}

// order sends an order to the clients, and decodes the answer unless answer is nil.
func (p *process) order(o order, answer any) error {
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if err := p.Tell("%s", data); err != nil {
		return err
	}
	line, err := p.Line()
	if err != nil || answer == nil {
		return err
	}
	return json.Unmarshal([]byte(line), answer)
}

// cpu is the CPU time of all threads, in seconds.
func (p *process) cpu() (float64, error) {
	spent, err := proc.CPU(p.PID())
	return spent.Ran.Seconds(), err
}

// poll is the interval between two checks whether a process is at rest.
const poll = 100 * time.Millisecond

// restingCPU is cpu once the process is at rest: the work of a change goes on for a while after the last ACK.
func (p *process) restingCPU(ctx context.Context) (float64, error) {
	last := 0.0
	for range 100 {
		now, err := p.cpu()
		if err != nil || now-last < 0.001 {
			return now, err
		}
		last = now
		if err := retry.Wait(ctx, poll); err != nil {
			return 0, err
		}
	}
	return last, nil
}

func (p *process) rss() (float64, error) {
	m, err := proc.MemoryOf(p.PID())
	return m.RssAnon, err
}

// settleAtMost bounds the wait for a program that returns memory when it wants to.
const settleAtMost = 15 * time.Second

// restingRSS is rss once it no longer changes. Roles are told to collect garbage and return memory; another program cannot
// be told.
func (p *process) restingRSS(ctx context.Context) (float64, error) {
	if p.IsRole() {
		for range 2 { // objects with a finalizer are freed by the second one
			if err := p.Ask("collect"); err != nil {
				return 0, err
			}
		}
	}
	last, stays := 0.0, 0
	for began := time.Now(); stays < 6 && time.Since(began) < settleAtMost; {
		now, err := p.rss()
		if err != nil {
			return 0, err
		}
		if stays++; math.Abs(now-last) > 0.002*now {
			stays = 0
		}
		last = now
		if err := retry.Wait(ctx, poll); err != nil {
			return 0, err
		}
	}
	return last, nil
}
