package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/sonde-mesh/sonde/test/bench/rig"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// session is one subject that serves one topology to the clients.
type session struct {
	*bench
	subject  string
	topology topology
	rows     list
	payload  *payload
	forms    forms
	server   *process
	clients  *process
	// change begins a change of a service. changed ends it, when it has reached the proxies.
	change  func(service int) error
	changed func() error
}

func (b *bench) session(ctx context.Context, subject string, p plan) (err error) {
	s := &session{bench: b, subject: subject, topology: p.topology, rows: p.rows, payload: b.payload[p.topology], forms: p.topology.forms()}
	if err := s.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.server.Stop()) }()
	clients, err := rig.StartRole(ctx, b.directory, roleClient, nil, "--state="+b.stateDirectory())
	if err != nil {
		return err
	}
	s.clients = &process{Process: clients}
	defer func() { err = errors.Join(err, s.clients.Stop()) }()
	return s.measure(ctx)
}

// takesPart says whether a row is measured for a subject.
func takesPart(row, subject string) bool {
	switch row {
	case rowIdle, rowOdd, rowSteady:
		return subject == subjectBuilder || subject == subjectSonde
	case rowReturn:
		return subject != subjectBroadcast
	case rowJoin:
		return subject == subjectSonde
	}
	return true
}

func (s *session) start(ctx context.Context) error {
	if s.subject == subjectSonde {
		return s.startSonde(ctx)
	}
	server, err := rig.StartRole(ctx, s.directory, s.subject, nil, "--state="+s.stateDirectory(), "--payload="+s.payloadFile(s.topology),
		"--proxies="+strconv.Itoa(s.topology.Proxies), "--services="+strconv.Itoa(s.topology.Services), "--narrow="+strconv.FormatBool(s.topology.Narrow))
	if err != nil {
		return err
	}
	s.server = &process{Process: server}
	if s.server.address, err = server.Line(); err != nil { // it prints where it listens
		return errors.Join(err, server.Stop())
	}
	s.change = func(service int) error { return server.Tell("change %d", service) }
	s.changed = server.Answered
	return nil
}

// note adds a figure of this session.
func (s *session) note(row, what string, value float64) {
	s.figures.add(key{row, s.topology, s.subject, what}, value)
}

// measure measures all rows, in the order that needs the fewest sessions.
func (s *session) measure(ctx context.Context) error {
	if err := s.connect(ctx); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if s.subject == subjectBare {
		return nil
	}
	for _, r := range []struct {
		row     string
		measure func(context.Context, string) error
	}{
		{rowChange, s.changes},
		{rowMany, s.changes},
		{rowNarrow, s.narrow},
		{rowIdle, s.idle},
		{rowReturn, s.reconnect},
		{rowOdd, s.odd},
		{rowSteady, s.steady},
		{rowJoin, s.join},
	} {
		if !s.rows.has(r.row) || !takesPart(r.row, s.subject) {
			continue
		}
		if err := s.profiled(r.row, func() error { return r.measure(ctx, r.row) }); err != nil {
			return fmt.Errorf("row %s: %w", r.row, err)
		}
	}
	return nil
}

// profiled writes a CPU profile of a row, if the options say so.
func (s *session) profiled(row string, measure func() error) error {
	if s.o.profiles == "" || s.subject != subjectBuilder {
		return measure()
	}
	name := fmt.Sprintf("%s-%d-%d.pprof", row, s.topology.Proxies, s.topology.Services)
	if err := s.server.Ask("profile %s", filepath.Join(s.o.profiles, name)); err != nil {
		return err
	}
	return errors.Join(measure(), s.server.Ask("profiled"))
}

// connect is rows e and f: all proxies connect at once, and how much memory they need once they have everything.
func (s *session) connect(ctx context.Context) error {
	empty, err := s.memoryOf(ctx)
	if err != nil {
		return err
	}
	before, err := s.server.cpu()
	if err != nil {
		return err
	}
	var l landing
	err = s.profiled(rowConnect, func() error {
		err := s.clients.order(order{Do: doOpen, Address: s.server.address, Proxies: s.topology.Proxies}, nil)
		arrived := doSettled
		if s.subject == subjectBare {
			arrived = doLinked
		}
		return errors.Join(err, s.clients.order(order{Do: arrived}, &l))
	})
	if err != nil {
		return err
	}
	after, err := s.server.restingCPU(ctx)
	if err != nil {
		return err
	}
	now, err := s.received()
	if err != nil {
		return err
	}
	for reason, n := range now.Reasons {
		fmt.Fprintf(os.Stderr, "%s, %s: %d × %s\n", s.topology, s.subject, n, reason)
	}
	if err := s.check(now); err != nil {
		return err
	}
	if s.rows.has(rowConnect) {
		s.note(rowConnect, figureWall, l.Last)
		s.note(rowConnect, figureP50, l.P50)
		s.note(rowConnect, figureCPU, after-before)
		s.note(rowConnect, figureRefused, float64(now.Refused))
		s.note(rowConnect, figureLost, float64(now.Lost))
		s.note(rowConnect, figureBytes, float64(now.Bytes))
	}
	if !s.rows.has(rowMemory) {
		return nil
	}
	full, err := s.memoryOf(ctx)
	if err != nil {
		return err
	}
	s.note(rowMemory, figureEmpty, empty)
	s.note(rowMemory, figurePerProxy, (full-empty)/float64(s.topology.Proxies))
	if s.o.profiles != "" && s.subject != subjectSonde {
		return s.server.Ask("heap %s", filepath.Join(s.o.profiles, fmt.Sprintf("heap-%s-%d-%d.pprof", s.subject, s.topology.Proxies, s.topology.Services)))
	}
	return nil
}

// received returns what the clients have counted.
func (s *session) received() (now stats, err error) {
	return now, s.clients.order(order{Do: doStats}, &now)
}

// cost does something and returns the server's CPU time for it, until the server is at rest.
func (s *session) cost(ctx context.Context, do func() error) (float64, error) {
	before, err := s.server.restingCPU(ctx)
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := s.server.restingCPU(ctx)
	return after - before, err
}

// memoryOf waits until the server's memory no longer changes, if its row is measured.
func (s *session) memoryOf(ctx context.Context) (float64, error) {
	if !s.rows.has(rowMemory) {
		return 0, nil
	}
	return s.server.restingRSS(ctx)
}

// count is the number of changes of a measurement. It is smaller for the directory, which takes time for each.
func (s *session) count() int {
	if s.subject == subjectSonde {
		return max(1, s.o.changes/2)
	}
	return s.o.changes
}

// check checks that the proxies have what the topology says: a subject that sends less would win.
func (s *session) check(now stats) error {
	if s.subject == subjectBare {
		return nil
	}
	want := s.topology.Proxies * s.topology.Services
	if s.topology.Narrow {
		want += endpointsPerService
	}
	if got := now.Has[resource.Endpoint]; got != want {
		return fmt.Errorf("the proxies have %d assignments, want %d", got, want)
	}
	for _, t := range []resource.Type{resource.Cluster, resource.Listener, resource.Route} {
		if got := now.Has[t]; got < s.topology.Proxies*s.topology.Services {
			return fmt.Errorf("the proxies have %d resources of type %s, want %d at least", got, t.Short(), s.topology.Proxies*s.topology.Services)
		}
	}
	return nil
}
