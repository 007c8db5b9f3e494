package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
)

// Subjects.
const (
	subjectSonde     = "sonde"
	subjectBuilder   = "sonde-builder"
	subjectBroadcast = "broadcast"
	subjectSnapshot  = "snapshot"
	subjectBare      = "bare"
)

func allSubjects() list {
	return list{subjectBuilder, subjectSonde, subjectBroadcast, subjectSnapshot, subjectBare}
}

// Rows of the table in docs/benchmarks.md.
const (
	rowChange  = "a" // one endpoint change, few services
	rowMany    = "b" // the same, many services
	rowNarrow  = "c" // a service that few see
	rowSteady  = "d" // many changes per second
	rowConnect = "e" // all connect at once
	rowMemory  = "f" // memory per proxy
	rowIdle    = "g" // nothing changes
	rowReturn  = "h" // all reconnect
	rowOdd     = "i" // one reads slowly, one never answers
	rowJoin    = "j" // all join: the control plane signs and writes down a certificate for each
	manyTimes  = 10  // as many services
	// fewestServices are enough to warm up with.
	fewestServices = 5
	crowd          = 5 // times as many proxies connect at once
)

func allRows() list {
	return list{rowChange, rowMany, rowNarrow, rowSteady, rowConnect, rowMemory, rowIdle, rowReturn, rowOdd, rowJoin}
}

// plan has the rows that are measured in a topology, and the subjects that take part.
type plan struct {
	topology topology
	rows     list
	subjects list
}

// topologies returns the three topologies: few services, many services, and many proxies.
func topologies(o options) (few, many, crowded topology) {
	services := max(o.proxies/endpointsPerService, fewestServices) // each proxy has one inbound
	few = topology{Proxies: o.proxies, Services: services}
	many = topology{Proxies: o.proxies, Services: services * manyTimes}
	crowded = topology{Proxies: o.proxies * crowd, Services: services}
	return few, many, crowded
}

func plans(o options) []plan {
	few, many, crowded := topologies(o)
	narrow := few
	narrow.Narrow = true
	all := []plan{
		{few, list{rowChange, rowConnect, rowMemory, rowIdle, rowReturn, rowOdd}, allSubjects()},
		{many, list{rowMany, rowMemory, rowSteady}, allSubjects()},
		{narrow, list{rowNarrow, rowJoin}, list{subjectBuilder, subjectSonde}},
		{crowded, list{rowConnect}, allSubjects()},
	}
	var wanted []plan
	for _, p := range all {
		p.rows = slices.DeleteFunc(p.rows, func(r string) bool { return !o.rows.has(r) })
		p.subjects = slices.DeleteFunc(p.subjects, func(s string) bool { return !o.subjects.has(s) })
		if len(p.rows) > 0 && len(p.subjects) > 0 {
			wanted = append(wanted, p)
		}
	}
	return wanted
}

// bench is one run.
type bench struct {
	o         options
	directory string // for everything that the processes need
	program   string // sonde-cp
	payload   map[topology]*payload
	figures   *figures
}

func measure(ctx context.Context, o options) (err error) {
	if err := raiseFiles(); err != nil {
		return err
	}
	directory, err := os.MkdirTemp("", "bench-xds-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	b := &bench{o: o, directory: directory, payload: map[topology]*payload{}, figures: newFigures()}
	if err := sondecp.MakeState(b.stateDirectory(), mesh.DefaultMesh); err != nil {
		return err
	}
	if o.subjects.has(subjectSonde) {
		if b.program, err = sondecp.Build(ctx); err != nil {
			return err
		}
	}
	if err := b.rounds(ctx); err != nil {
		return err
	}
	return report(o, b.figures)
}

// rounds measures each subject once per round, in a different order each time.
func (b *bench) rounds(ctx context.Context) error {
	for round := range b.o.rounds {
		for _, p := range plans(b.o) {
			if err := b.generate(p.topology); err != nil {
				return err
			}
			turn := round % len(p.subjects)
			for _, subject := range slices.Concat(p.subjects[turn:], p.subjects[:turn]) {
				began, known := time.Now(), len(b.figures.log)
				if err := b.session(ctx, subject, p); err != nil {
					return fmt.Errorf("round %d, %s, %s: %w", round+1, p.topology, subject, err)
				}
				fmt.Fprintf(os.Stderr, "round %d, %s, %s: %s: %s\n", round+1, p.topology, subject, time.Since(began).Round(time.Millisecond),
					b.figures.since(known))
			}
		}
	}
	return nil
}

func (b *bench) generate(w topology) error {
	if b.payload[w] != nil {
		return nil
	}
	p, err := generate(w)
	if err != nil {
		return err
	}
	b.payload[w] = p
	return p.write(b.payloadFile(w))
}

func (b *bench) stateDirectory() string { return filepath.Join(b.directory, "state") }

func (b *bench) payloadFile(w topology) string {
	return filepath.Join(b.directory, fmt.Sprintf("payload-%d-%d-%t", w.Proxies, w.Services, w.Narrow))
}

// wantFiles is enough for the connections of the largest crowd, which both sides hold open.
const wantFiles = 8192

// raiseFiles raises the limit of open files, which the processes inherit. Go programs raise their soft limit themselves.
func raiseFiles() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	if limit.Max < wantFiles {
		return fmt.Errorf("%d files may be open, %d are needed: raise the limit (ulimit -Hn)", limit.Max, wantFiles)
	}
	limit.Cur = limit.Max
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
}
