package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/sonde-mesh/sonde/test/bench/rig"
	"github.com/sonde-mesh/sonde/test/harness"
)

// side is a mesh with two proxies.
type side struct {
	machine *harness.Machine
	// outbound is where the client reaches the service, by protocol.
	outbound map[bool]string
	close    []func() error
}

func measure(ctx context.Context, o options) (err error) {
	programs, err := harness.Build(ctx, false)
	if err != nil {
		return err
	}
	var sides []*side
	defer func() {
		for _, s := range sides {
			err = errors.Join(err, s.end())
		}
	}()
	for _, controlPlane := range []string{o.before, programs.ControlPlane} {
		with := programs
		if controlPlane != "" {
			with.ControlPlane = controlPlane
		}
		s, err := start(ctx, with)
		if s != nil {
			sides = append(sides, s)
		}
		if err != nil {
			return err
		}
	}
	r := rig.NewReport(o.rounds, "The ratio is the median of those of rounds beside each other.")
	r.Head("", "before", "after", "unit", "ratio", "lowest", "highest")
	for _, w := range workloads {
		if !o.only.MatchString(w.name) {
			continue
		}
		if err := compare(ctx, r, o, w, sides); err != nil {
			return err
		}
	}
	return r.Print()
}

// compare measures one workload on both sides in turns.
func compare(ctx context.Context, r *rig.Report, o options, w workload, sides []*side) error {
	var figures [2][]float64
	var ratios []float64
	for round := range o.rounds {
		var pair [2]float64
		for n := range sides {
			which := (n + round) % 2 // neither is always the first
			figure, err := w.run(ctx, sides[which].outbound[w.http2], o.time)
			if err != nil {
				return err
			}
			pair[which] = figure
			figures[which] = append(figures[which], figure)
		}
		ratios = append(ratios, pair[1]/pair[0])
	}
	slices.Sort(ratios)
	text := func(format string, value float64) string { return fmt.Sprintf(format, value) }
	r.Row(w.name, text("%.0f", rig.Median(figures[0])), text("%.0f", rig.Median(figures[1])), w.unit(),
		text("%.2f", rig.Median(ratios)), text("%.2f", ratios[0]), text("%.2f", ratios[len(ratios)-1]))
	return nil
}

// start starts a mesh. The caller must end it even if there is an error, unless it is nil.
func start(ctx context.Context, programs harness.Programs) (*side, error) {
	m, err := harness.Start(ctx, harness.Options{Programs: programs})
	if err != nil {
		return nil, err
	}
	s := &side{machine: m, outbound: map[bool]string{}, close: []func() error{m.Close}}
	for _, o := range []harness.ProxyOptions{{Name: "http", Service: "http", Protocol: "http"}, {Name: "http2", Service: "http2", Protocol: "http2"}} {
		if err := s.startServer(ctx, o); err != nil {
			return s, err
		}
	}
	client, err := m.Add(ctx, harness.ProxyOptions{Name: "client", Service: "client", Outbound: []string{"http", "http2"}})
	if err != nil {
		return s, err
	}
	s.outbound[false], s.outbound[true] = client[0].Outbounds["http"], client[0].Outbounds["http2"]
	return s, harness.Poll(ctx, harness.StartLimit, "the client to have all endpoints", client[0].Synced)
}

// startServer starts a proxy with the application behind it in this process.
func (s *side) startServer(ctx context.Context, o harness.ProxyOptions) error {
	p, err := s.machine.Prepare(o)
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.AppAddress)
	if err != nil {
		return err
	}
	s.close = append(s.close, serve(l).Close)
	return errors.Join(p.Declare(), p.StartAgent(ctx), p.WaitReady(ctx))
}

func (s *side) end() error {
	var errs []error
	for _, c := range slices.Backward(s.close) {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}
