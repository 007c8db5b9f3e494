package main

import (
	"context"
	"fmt"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// warmUp is the number of changes that are made first and not counted.
const warmUp = 3

// narrowTimes as many changes are made if few proxies see them.
const narrowTimes = 5

// expected changes the form of a service in the session's topology, and returns the order that expects the new version.
func (s *session) expected(service int) order {
	s.forms[service] = !s.forms[service]
	e := s.payload.of(service, s.forms)
	first, last := s.topology.viewers(service)
	return order{Do: doExpect, Name: e.Name, Version: e.Version, First: first, Last: last}
}

// changeOnce makes one change and waits until all have it. It returns when the change began and when it arrived.
func (s *session) changeOnce(service int) (began int64, a arrival, err error) {
	if err := s.clients.order(s.expected(service), nil); err != nil {
		return 0, a, err
	}
	began = now()
	if err := s.change(service); err != nil {
		return 0, a, err
	}
	var all []arrival
	if err := s.clients.order(order{Do: doAwait}, &all); err != nil {
		return 0, a, err
	}
	if all[0].Missing > 0 {
		return 0, a, fmt.Errorf("%d proxies have not got a change of %s within %s; %s", all[0].Missing, s.topology.serviceName(service), waitAtMost, s.losses())
	}
	return began, all[0], s.changed()
}

// losses describes what the clients know of streams that ended.
func (s *session) losses() string {
	now, err := s.received()
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%v; assignments %d", now.Reasons, now.Has[resource.Endpoint])
}

// changes are rows a and b: one endpoint change at a time.
func (s *session) changes(ctx context.Context, row string) error {
	for i := range warmUp {
		if _, _, err := s.changeOnce(s.topology.Services - 1 - i); err != nil {
			return err
		}
	}
	return s.series(ctx, row, "", s.count(), func(i int) int { return i % s.topology.Services })
}

// narrow is row c: a service that few see, and one that all see.
func (s *session) narrow(ctx context.Context, row string) error {
	for range warmUp {
		if _, _, err := s.changeOnce(s.topology.narrow()); err != nil {
			return err
		}
	}
	// The fewer proxies see a change, the less it costs, and the more changes are needed to measure that.
	if err := s.series(ctx, row, "", narrowTimes*s.count(), func(int) int { return s.topology.narrow() }); err != nil {
		return err
	}
	return s.series(ctx, row, figureAll, s.count(), func(i int) int { return i % s.topology.Services })
}

// series makes changes one after the other, and notes their times and costs under names with that ending.
func (s *session) series(ctx context.Context, row, ending string, changes int, service func(i int) int) error {
	cpu, err := s.cost(ctx, func() error {
		for i := range changes {
			began, a, err := s.changeOnce(service(i))
			if err != nil {
				return err
			}
			s.arrived(row, ending, began, a)
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.note(row, figureCPU+ending, cpu/float64(changes))
	return nil
}

func (s *session) arrived(row, ending string, began int64, a arrival) {
	since := func(t int64) float64 { return float64(t-began) / 1e9 }
	s.note(row, figureSeen+ending, since(a.Seen))
	s.note(row, figureP50+ending, since(a.P50))
	s.note(row, figureP99+ending, since(a.P99))
	s.note(row, figureWall+ending, since(a.Last))
}
