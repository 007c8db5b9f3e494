package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sonde-mesh/sonde/test/bench/rig"
)

// perSecond is the rate of changes in row d.
const perSecond = 100

// steady is row d: many changes per second. All services change in turn.
func (s *session) steady(ctx context.Context, row string) error {
	var began []int64
	cpu, err := s.cost(ctx, func() error {
		var memory []float64
		var err error
		if began, memory, err = s.pour(ctx, int(s.o.duration.Seconds()*perSecond)); err != nil {
			return err
		}
		s.memory(row, memory)
		return s.poured(row, began)
	})
	if err != nil {
		return err
	}
	s.note(row, figureCPU, cpu/float64(len(began)))
	return nil
}

// poured waits until all have the changes that pour made.
func (s *session) poured(row string, began []int64) error {
	var all []arrival
	if err := s.clients.order(order{Do: doAwait}, &all); err != nil {
		return err
	}
	missing := 0
	for i, a := range all {
		if a.Missing > 0 {
			missing++
			continue
		}
		s.arrived(row, "", began[i], a)
	}
	if missing > 0 {
		return fmt.Errorf("%d of %d changes have not come to all; %s", missing, len(all), s.losses())
	}
	for range began {
		if err := s.changed(); err != nil {
			return err
		}
	}
	return nil
}

// pour makes many changes and measures the server's memory every second. It returns when each change began, and the memory.
func (s *session) pour(ctx context.Context, changes int) (began []int64, memory []float64, err error) {
	ticker := time.NewTicker(time.Second / perSecond)
	defer ticker.Stop()
	for i := range changes {
		service := i % s.topology.Services
		if err := s.clients.order(s.expected(service), nil); err != nil {
			return nil, nil, err
		}
		if i%perSecond == 0 {
			rss, err := s.server.rss()
			if err != nil {
				return nil, nil, err
			}
			memory = append(memory, rss)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
		began = append(began, now())
		if err := s.change(service); err != nil {
			return nil, nil, err
		}
	}
	return began, memory, nil
}

// memory notes the memory in each third of the time.
func (s *session) memory(row string, list []float64) {
	for i, what := range []string{figureStart, figureMiddle, figureEnd} {
		s.note(row, what, rig.Median(list[i*len(list)/3:max((i+1)*len(list)/3, i*len(list)/3+1)]))
	}
}
