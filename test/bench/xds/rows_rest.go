package main

import (
	"context"
	"errors"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/retry"
)

// idleTime is how long row g watches.
const idleTime = 20 * time.Second

// idle is row g: nothing changes.
func (s *session) idle(ctx context.Context, row string) error {
	cpu, err := s.server.restingCPU(ctx)
	if err != nil {
		return err
	}
	before, err := s.received()
	if err != nil {
		return err
	}
	began := now()
	if err := retry.Wait(ctx, min(idleTime, s.o.duration)); err != nil {
		return err
	}
	spent, err := s.server.cpu()
	if err != nil {
		return err
	}
	seconds := float64(now()-began) / 1e9
	after, err := s.received()
	if err != nil {
		return err
	}
	s.note(row, figureShare, (spent-cpu)/seconds)
	s.note(row, figureResponses, float64(after.Responses-before.Responses))
	s.note(row, figureBytes, float64(after.Bytes-before.Bytes))
	return nil
}

// reconnect is row h: all proxies reconnect at once, and say what they have.
func (s *session) reconnect(ctx context.Context, row string) error {
	if err := s.clients.order(order{Do: doClose}, nil); err != nil {
		return err
	}
	before, err := s.received()
	if err != nil {
		return err
	}
	var l landing
	cpu, err := s.cost(ctx, func() error {
		err := s.clients.order(order{Do: doOpen, Address: s.server.address, Proxies: s.topology.Proxies}, nil)
		return errors.Join(err, s.clients.order(order{Do: doLinked}, &l))
	})
	if err != nil {
		return err
	}
	after, err := s.received()
	if err != nil {
		return err
	}
	s.note(row, figureWall, l.Last)
	s.note(row, figureCPU, cpu)
	s.note(row, figureBytes, float64(after.Bytes-before.Bytes))
	s.note(row, figureResources, float64(after.Resources-before.Resources))
	s.note(row, figureRefused, float64(after.Refused-before.Refused))
	_, _, err = s.changeOnce(0) // a proxy without its subscriptions would not get this
	return err
}

// odd is row i: two more streams, of which one reads slowly and one never answers.
func (s *session) odd(ctx context.Context, row string) error {
	service := func(i int) int { return i % s.topology.Services }
	if err := s.series(ctx, row, "", s.count(), service); err != nil {
		return err
	}
	if err := s.clients.order(order{Do: doOdd, Address: s.server.address}, nil); err != nil {
		return err
	}
	return s.series(ctx, row, figureWith, s.count(), service)
}
