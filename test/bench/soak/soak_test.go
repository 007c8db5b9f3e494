//go:build soak

package soak

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/test/adsclient"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
	"github.com/sonde-mesh/sonde/test/harness"
)

var (
	duration = flag.Duration("soak", 10*time.Minute, "how long operations go on, from 10s; the search for leaks comes after")
	seed     = flag.Uint64("seed", 0, "decides what happens; 0 takes one at random")
	proxies  = flag.Int("proxies", 200, "proxies, at least 16")
	services = flag.Int("services", 100, "services, at least 16")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soak is one run.
type soak struct {
	*testing.T
	random  *rand.Rand // used only by the test's goroutine, which makes the operations
	machine *harness.Machine
	writer  *writer
	members []*member
	catalog *adsclient.Catalog
	journal *os.File
	counts  counts

	generation atomic.Int64 // number of control planes so far
	up         atomic.Bool  // a control plane runs and was not terminated

	// at is the time of the current operation since began, without the time of rests.
	at     time.Duration
	began  time.Time
	events []event

	gone sync.Mutex
	lost []*conn // connections that vanished proxies keep open
}

// event happens at a later time: the second half of an operation, or a restart of the control
// plane.
type event struct {
	at time.Duration
	do func()
}

// counts has the number of each kind of event.
type counts struct {
	mu sync.Mutex
	of map[string]int
}

func (c *counts) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of[what]++
}

func (c *counts) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, what := range slices.Sorted(maps.Keys(c.of)) {
		all = append(all, fmt.Sprintf("%s: %d", what, c.of[what]))
	}
	return strings.Join(all, "\n")
}

func TestSoak(t *testing.T) {
	if *duration < 10*time.Second || *proxies < 2*prodShare || *services < 2*prodShare {
		t.Fatalf("too little: -soak from 10s, -proxies and -services from %d", 2*prodShare)
	}
	for *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("-soak %s -seed %d -proxies %d -services %d", *duration, *seed, *proxies, *services)
	s := start(t)
	s.play()
	s.leaks()
	s.empty()
	s.terminate()
	s.complaints()
	t.Logf("every proxy has the expected configuration, and nothing leaks:\n%s", &s.counts)
}

// start starts the control plane with its files, and creates proxies that have joined.
func start(t *testing.T) *soak {
	t.Helper()
	program, err := harness.BuildInto(t.Context(), t.TempDir(), "cmd/sonde-cp")
	if err != nil {
		t.Fatal(err)
	}
	s := &soak{T: t, random: rand.New(rand.NewPCG(*seed, 5)), catalog: adsclient.NewCatalog(), counts: counts{of: map[string]int{}}}
	artifacts := t.ArtifactDir()
	s.journal, err = os.Create(filepath.Join(artifacts, "operations.log"))
	s.must(err)
	s.machine = harness.New(t, harness.Options{Programs: harness.Programs{ControlPlane: program}, Prepare: s.prepare})
	t.Cleanup(func() {
		s.empty()
		s.up.Store(false)
		if t.Failed() {
			s.must(os.CopyFS(artifacts, os.DirFS(s.machine.Dir)))
		}
		s.must(s.journal.Close())
	})
	return s
}

// prepare prepares everything except for the control plane.
func (s *soak) prepare(m *harness.Machine) error {
	s.writer = newWriter(s, m.StoreDir())
	joined := map[mesh.ID]string{}
	for i := range *proxies {
		joined[proxyID(i)] = workload(i)
	}
	if err := errors.Join(sondecp.MakeState(m.StateDir(), meshes...), sondecp.Join(m.StateDir(), joined)); err != nil {
		return err
	}
	id, err := sondecp.OpenIdentity(m.StateDir())
	if err != nil {
		return err
	}
	for i := range *proxies {
		config, err := id.ClientTLS(identity.Subject{Mesh: meshOf(i), Dataplane: proxyName(i), Path: mesh.WorkloadPath(workload(i))})
		if err != nil {
			return err
		}
		s.members = append(s.members, &member{s: s, node: proxyID(i), tls: config, state: adsclient.NewState(s.catalog)})
	}
	return nil
}

// must ends the run if err is not nil.
func (s *soak) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// poll is the interval of polling.
const poll = 100 * time.Millisecond

func (s *soak) wait(d time.Duration) { s.must(run.Sleep(s.Context(), d)) }

// note writes an operation into the journal.
func (s *soak) note(format string, args ...any) {
	_, err := fmt.Fprintf(s.journal, "%10.3f %s\n", s.at.Seconds(), fmt.Sprintf(format, args...))
	s.must(err)
}

// later calls do after a delay on the clock of the operations.
func (s *soak) later(after time.Duration, do func()) {
	s.events = append(s.events, event{s.at + after, do})
	slices.SortStableFunc(s.events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
}

// play makes operations, kills the control plane every minute, and rests between the kills and at the end.
func (s *soak) play() {
	s.watch()
	for _, m := range s.members {
		m.join(false)
	}
	s.began = time.Now()
	period := min(time.Minute, *duration/2)
	var rests []time.Duration
	for end := period; end <= *duration; end += period {
		rests = append(rests, end-period/2)
		s.events = append(s.events, event{end - s.upTo(period/6), s.restart})
	}
	for _, until := range append(rests, *duration) {
		s.operate(until)
		s.rest()
	}
}

// meanGap is the mean time between two operations.
const meanGap = 50 * time.Millisecond

// operate makes operations until a time.
func (s *soak) operate(until time.Duration) {
	next := s.at
	for {
		if s.Failed() {
			s.FailNow()
		}
		at, do := next, s.operation
		due := len(s.events) > 0 && s.events[0].at <= at
		if due {
			at, do = s.events[0].at, s.events[0].do
		}
		if at >= until {
			s.at = until
			return
		}
		s.wait(time.Until(s.began.Add(at)))
		s.at = at
		if due {
			s.events = s.events[1:]
		} else {
			next += s.upTo(2 * meanGap)
		}
		do()
	}
}

// upTo draws a duration below d.
func (s *soak) upTo(d time.Duration) time.Duration { return time.Duration(s.random.Int64N(int64(d))) }

// oneIn is true with a probability of 1/n.
func (s *soak) oneIn(n int) bool { return s.random.IntN(n) == 0 }

// begin starts the control plane unless it runs, without waiting until it serves.
func (s *soak) begin() {
	if s.up.Load() {
		return
	}
	s.note("the control plane starts")
	s.must(s.machine.LaunchControlPlane())
	s.watch()
}

// watch reports if the newly started control plane exits by itself.
func (s *soak) watch() {
	process, generation := s.machine.ControlPlane, s.generation.Add(1)
	s.up.Store(true)
	go func() {
		<-process.Done()
		if s.up.Load() && s.generation.Load() == generation {
			s.Errorf("the control plane exited by itself: %s", s.machine.Logs(30))
		}
	}()
}

// endWithin is how long the control plane may take to end after SIGTERM.
const endWithin = 20 * time.Second

// terminate sends SIGTERM to the control plane, which must end in time and without an error.
func (s *soak) terminate() {
	if !s.up.Swap(false) {
		return
	}
	ctx, cancel := context.WithTimeout(s.Context(), endWithin)
	defer cancel()
	s.must(s.machine.ControlPlane.Terminate(ctx))
}

// restart ends the control plane and restarts it later.
func (s *soak) restart() {
	switch {
	case s.oneIn(4):
		s.note("the control plane is told to end")
		s.counts.add("control plane told to end")
		s.terminate()
	case s.up.Swap(false):
		s.note("the control plane is killed")
		s.counts.add("control plane killed")
		s.machine.ControlPlane.Kill()
	}
	s.later(s.upTo(4*time.Second), s.begin)
}

// complaints fails the test for log lines that a control plane must not write.
func (s *soak) complaints() {
	logs, err := s.machine.LogFiles()
	s.must(err)
	for _, log := range logs {
		for _, words := range []string{"panic:", "fatal error:", "failed to generate resources"} {
			if _, after, found := strings.Cut(log, words); found {
				s.Errorf("the control plane logs: %s%.1000s", words, after)
			}
		}
	}
}

// empty has all proxies leave.
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
