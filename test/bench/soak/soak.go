package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/retry"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/test/adsclient"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
	"github.com/sonde-mesh/sonde/test/harness"
)

// soak is one run.
type soak struct {
	o       options
	out     io.Writer
	random  *rand.Rand // used only by the goroutine that makes the operations
	writer  *writer
	plane   *plane
	members []*member
	catalog *adsclient.Catalog
	counts  counts
	journal *os.File

	// at is when the current operation is due, counted from began. The time of rests does not count.
	at     time.Duration
	began  time.Time
	events []event

	gone sync.Mutex
	lost []*conn // connections that vanished proxies keep open

	mu       sync.Mutex
	problems []error
	stopped  atomic.Bool // there is a problem
}

// event is the later part of an operation.
type event struct {
	at time.Duration
	do func()
}

// newSoak starts the control plane with its files and proxies that have joined.
func newSoak(ctx context.Context, o options, program string, out io.Writer) (*soak, error) {
	s := &soak{o: o, out: out, random: rand.New(rand.NewPCG(o.seed, 5)), catalog: adsclient.NewCatalog()}
	s.plane = &plane{s: s}
	var err error
	s.plane.Machine, err = harness.Start(ctx, harness.Options{Programs: harness.Programs{ControlPlane: program}, Prepare: s.prepare})
	return s, err
}

// prepare makes everything but the control plane.
func (s *soak) prepare(m *harness.Machine) error {
	var err error
	if s.journal, err = os.Create(filepath.Join(m.Dir, "operations.log")); err != nil {
		return err
	}
	if s.writer, err = newWriter(s, m.StoreDir()); err != nil {
		return err
	}
	joined := map[mesh.ID]string{}
	for i := range s.o.proxies {
		joined[proxyID(i)] = workload(i)
	}
	if err := errors.Join(sondecp.MakeState(m.StateDir(), meshes...), sondecp.Join(m.StateDir(), joined)); err != nil {
		return err
	}
	id, err := sondecp.OpenIdentity(m.StateDir())
	if err != nil {
		return err
	}
	for i := range s.o.proxies {
		config, err := id.ClientTLS(identity.Subject{Mesh: meshOf(i), Dataplane: proxyName(i), Path: mesh.WorkloadPath(workload(i))})
		if err != nil {
			return err
		}
		s.members = append(s.members, &member{s: s, node: proxyID(i), tls: config, state: adsclient.NewState(s.catalog)})
	}
	return nil
}

// wrong reports a problem, which ends the run.
func (s *soak) wrong(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped.Store(true)
	if len(s.problems) < 10 {
		s.problems = append(s.problems, err)
		s.writeDown("WRONG: %v", err)
	}
}

func (s *soak) problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.problems...)
}

// note writes an operation into the journal.
func (s *soak) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeDown(format, args...)
}

// writeDown needs mu. Errors are ignored: the journal does not decide anything.
func (s *soak) writeDown(format string, args ...any) {
	_, _ = fmt.Fprintf(s.journal, "%10.3f %s\n", s.at.Seconds(), fmt.Sprintf(format, args...))
}

// later calls do after a while, in the time of the operations.
func (s *soak) later(after time.Duration, do func()) {
	s.events = append(s.events, event{s.at + after, do})
	slices.SortStableFunc(s.events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
}

// play makes the whole run.
func (s *soak) play(ctx context.Context) error {
	progressed := make(chan struct{})
	watched, done := context.WithCancel(ctx)
	go func() {
		defer close(progressed)
		s.progress(watched)
	}()
	defer func() { done(); <-progressed }()

	s.plane.watch()
	for _, m := range s.members {
		m.join(ctx, false)
	}
	s.began = time.Now()
	for _, until := range s.plan(ctx) {
		if err := s.operate(ctx, until); err != nil {
			return err
		}
		if err := s.rest(ctx); err != nil {
			return err
		}
	}
	return s.leaks(ctx)
}

// plan has the control plane killed every minute. It returns when to rest: between the kills and at the end.
func (s *soak) plan(ctx context.Context) (rests []time.Duration) {
	period := min(time.Minute, s.o.duration/2)
	for end := period; end <= s.o.duration; end += period {
		if at := end - period/2; at < s.o.duration {
			rests = append(rests, at)
		}
		s.events = append(s.events, event{end - s.upTo(period/6), func() { s.restart(ctx) }})
	}
	return append(rests, s.o.duration)
}

// operate makes operations until a time.
func (s *soak) operate(ctx context.Context, until time.Duration) error {
	next := s.at
	for !s.stopped.Load() {
		at, do := next, func() { s.operation(ctx) }
		if len(s.events) > 0 && s.events[0].at <= at {
			at, do = s.events[0].at, s.events[0].do
		}
		if at >= until {
			s.at = until
			return nil
		}
		if err := retry.Wait(ctx, time.Until(s.began.Add(at))); err != nil {
			return err
		}
		s.at = at
		if at == next {
			next += s.upTo(2 * meanGap)
			do()
			continue
		}
		s.events = s.events[1:]
		do()
	}
	return s.problem()
}

// meanGap is the mean time between two operations.
const meanGap = 50 * time.Millisecond

// upTo draws a duration below d.
func (s *soak) upTo(d time.Duration) time.Duration { return time.Duration(s.random.Int64N(int64(d))) }

// oneIn is true once in n times.
func (s *soak) oneIn(n int) bool { return s.random.IntN(n) == 0 }

// end ends everything.
func (s *soak) end() error {
	s.empty()
	err := errors.Join(s.plane.terminate(context.Background()), s.plane.complaints(), s.journal.Close())
	return errors.Join(s.problem(), err)
}

// empty has all proxies leave, and closes the connections that vanished proxies keep open.
func (s *soak) empty() {
	for _, m := range s.members {
		m.leave(endClose)
	}
	s.closeLost()
}

// closeLost closes the connections that vanished proxies keep open.
func (s *soak) closeLost() {
	s.gone.Lock()
	defer s.gone.Unlock()
	for _, c := range s.lost {
		_ = c.Conn.Close() // the server may have closed it
	}
	s.lost = nil
}
