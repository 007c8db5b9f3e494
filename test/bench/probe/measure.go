package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/bench/rig"
	"github.com/sonde-mesh/sonde/test/harness"
)

// Subjects, in the order of the output.
const (
	subjectDirect = "asked directly"
	subjectSonde  = "sonde-dp"
)

var subjects = []string{subjectDirect, roleRaw, roleNaive, roleHandler, subjectSonde}

// atOnce lists how many probes are made at the same time.
var atOnce = []int{1, 8}

// cell has the figures of one subject, one kind of probe and one number at once.
type cell struct {
	Kind    string
	AtOnce  int
	Subject string
	// Medians of all rounds. CPU and times are in microseconds per probe.
	CPU, P50, P99, PerSecond float64
	// Allocs and Bytes per probe, if the process reports them.
	Allocs, Bytes float64
	// TimeWait is the number of connections to the application in TIME_WAIT, per 1,000 probes.
	TimeWait float64
	// CPUs has the CPU of each round.
	CPUs []float64

	p50, p99, perSecond, allocs, bytes, timeWait []float64
}

// bench is one run.
type bench struct {
	o         options
	directory string // of the program and of logs
	program   string
	app       ports
	client    *rig.Process
}

func measure(ctx context.Context, o options) (err error) {
	b := &bench{o: o}
	if b.directory, err = os.MkdirTemp("", "sonde-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.directory)) }()
	if b.program, err = harness.BuildInto(ctx, b.directory, "cmd/sonde-dp"); err != nil {
		return err
	}
	app, err := rig.StartRole(ctx, b.directory, "app", nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, app.Stop()) }()
	line, err := app.Line()
	if err != nil {
		return err
	}
	if b.app, err = parsePorts(line); err != nil {
		return err
	}
	if b.client, err = rig.StartRole(ctx, b.directory, "client", nil); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.client.Stop()) }()
	cells, err := b.speed(ctx)
	if err != nil {
		return err
	}
	sizes, err := b.size(ctx)
	if err != nil {
		return err
	}
	return report(o, cells, sizes)
}

// speed measures all subjects, one after the other in each round. Each round begins with another subject.
func (b *bench) speed(ctx context.Context) ([]*cell, error) {
	var cells []*cell
	for _, kind := range kinds {
		running, stop, err := b.startAll(ctx, kind)
		if err != nil {
			return nil, err
		}
		for _, n := range atOnce {
			var row []*cell
			for _, s := range subjects {
				row = append(row, &cell{Kind: kind, AtOnce: n, Subject: s})
			}
			for round := range b.o.rounds + 1 {
				fmt.Fprintf(os.Stderr, "%s, %d at once, round %d of %d\n", kind, n, round, b.o.rounds)
				for i := range row {
					c := row[(i+round)%len(row)]
					if err := b.measureOnce(c, running[c.Subject], round > 0); err != nil { // the first warms up
						return nil, errors.Join(fmt.Errorf("%s, %s: %w", kind, c.Subject, err), stop())
					}
				}
			}
			for _, c := range row {
				c.medians()
			}
			cells = append(cells, row...)
		}
		if err := stop(); err != nil {
			return nil, err
		}
	}
	return cells, nil
}

// startAll starts the subjects for one kind of probe.
func (b *bench) startAll(ctx context.Context, kind string) (running map[string]*process, stop func() error, err error) {
	running = map[string]*process{subjectDirect: nil}
	stop = func() error {
		var errs []error
		for _, p := range running {
			if p != nil {
				errs = append(errs, p.stop())
			}
		}
		return errors.Join(errs...)
	}
	table := tableOf([]string{kind}, b.o.entries, b.app)
	env, err := table.Encode()
	if err != nil {
		return nil, nil, err
	}
	for _, s := range subjects[1:] {
		var p *process
		switch s {
		case subjectSonde:
			p, err = startAgent(ctx, b.program, table)
		case roleHandler: // as sonde-dp sets itself up
			p, err = b.startSubject(ctx, s, "GOGC=40", "GOMAXPROCS=1", mesh.EnvProbeTable+"="+env)
		default:
			p, err = b.startSubject(ctx, s)
		}
		if err != nil {
			return nil, nil, errors.Join(err, stop())
		}
		running[s] = p
	}
	return running, stop, nil
}

// measureOnce measures a subject once, and keeps the figures if keep is set.
func (b *bench) measureOnce(c *cell, p *process, keep bool) error {
	o := order{Kind: c.Kind, Port: b.app.of(c.Kind), Probes: b.o.probes, AtOnce: c.AtOnce, Entries: b.o.entries}
	if p == nil {
		p, o.Direct, o.Target = &process{Process: b.client}, true, at(o.Port)
	} else {
		o.Target = p.address
	}
	tells := p.agent == nil && !o.Direct
	var n0, size0, n1, size1 float64
	var err error
	if tells {
		if n0, size0, err = p.allocations(); err != nil {
			return err
		}
	}
	waiting, err := timeWait(o.Port)
	if err != nil {
		return err
	}
	before, err := p.cpu()
	if err != nil {
		return err
	}
	f, err := b.makeProbes(o)
	if err != nil {
		return err
	}
	after, err := p.cpu()
	if err != nil {
		return err
	}
	waitingNow, err := timeWait(o.Port)
	if err != nil {
		return err
	}
	if tells {
		if n1, size1, err = p.allocations(); err != nil {
			return err
		}
	}
	if !keep {
		return nil
	}
	probes := float64(b.o.probes)
	c.CPUs = append(c.CPUs, (after-before)/1000/probes)
	c.p50, c.p99, c.perSecond = append(c.p50, f.P50), append(c.p99, f.P99), append(c.perSecond, f.PerSec)
	c.allocs, c.bytes = append(c.allocs, (n1-n0)/probes), append(c.bytes, (size1-size0)/probes)
	c.timeWait = append(c.timeWait, max(0, float64(waitingNow-waiting)*1000/probes))
	return nil
}

// makeProbes has the client make probes. All of them must succeed.
func (b *bench) makeProbes(o order) (figures, error) {
	var f figures
	data, err := json.Marshal(o)
	if err != nil {
		return f, err
	}
	if err := b.client.Tell("%s", data); err != nil {
		return f, err
	}
	line, err := b.client.Line()
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal([]byte(line), &f); err != nil {
		return f, err
	}
	if f.Failed > 0 {
		return f, fmt.Errorf("%d of %d probes failed, one with: %s", f.Failed, o.Probes, f.Err)
	}
	return f, nil
}

func (c *cell) medians() {
	c.CPU, c.P50, c.P99, c.PerSecond = rig.Median(c.CPUs), rig.Median(c.p50), rig.Median(c.p99), rig.Median(c.perSecond)
	c.Allocs, c.Bytes, c.TimeWait = rig.Median(c.allocs), rig.Median(c.bytes), rig.Median(c.timeWait)
}

// size has the memory of a subject.
type size struct {
	Subject string
	Entries int
	// Rest is measured after a few probes of each entry, After after Probes more.
	Rest, After memory
	Probes      int
}

// usualEntries is the number of probes of a pod with three containers, each with all three kinds of checks.
const usualEntries = 9

// size measures the memory of an agent with a usual table, of one that gets many probes, and of the naive design.
func (b *bench) size(ctx context.Context) ([]size, error) {
	var sizes []size
	each := b.o.entries / len(kinds)
	for _, s := range []struct {
		subject      string
		each, probes int
	}{
		{subjectSonde, usualEntries / len(kinds), 0}, {subjectSonde, each, b.o.million}, {roleNaive, each, b.o.million},
	} {
		table := tableOf(kinds, s.each, b.app)
		var p *process
		var err error
		if s.subject == subjectSonde {
			p, err = startAgent(ctx, b.program, table)
		} else {
			p, err = b.startSubject(ctx, s.subject)
		}
		if err != nil {
			return nil, err
		}
		result := size{Subject: s.subject, Entries: len(table), Probes: s.probes}
		err = b.sizeOf(ctx, p, s.each, &result)
		if err = errors.Join(err, p.stop()); err != nil {
			return nil, fmt.Errorf("memory of %s: %w", s.subject, err)
		}
		sizes = append(sizes, result)
	}
	return sizes, nil
}

func (b *bench) sizeOf(ctx context.Context, p *process, each int, s *size) error {
	ask := func(kind, probes, atOnce int) error {
		k := kinds[kind]
		_, err := b.makeProbes(order{Target: p.address, Kind: k, Port: b.app.of(k), Probes: probes, AtOnce: atOnce, First: kind * each, Entries: each})
		return err
	}
	for kind := range kinds {
		if err := ask(kind, 3*each, 1); err != nil {
			return err
		}
	}
	var err error
	if s.Rest, err = p.highest(ctx); err != nil || s.Probes == 0 {
		return err
	}
	const step = 10_000
	for done := 0; done < s.Probes; done += step {
		if done%(10*step) == 0 {
			fmt.Fprintln(os.Stderr, "memory of "+s.Subject+": "+strconv.Itoa(done)+" probes")
		}
		if err := ask(done/step%len(kinds), min(step, s.Probes-done), atOnce[1]); err != nil {
			return err
		}
	}
	s.After, err = p.highest(ctx)
	return err
}
