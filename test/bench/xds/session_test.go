package xds

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/internal/testing/memorytest"
	"github.com/sonde-mesh/sonde/internal/testing/storetest"
	"github.com/sonde-mesh/sonde/test/bench/arrivals"
	"github.com/sonde-mesh/sonde/test/bench/proc"
	"github.com/sonde-mesh/sonde/test/bench/rig"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
	"github.com/sonde-mesh/sonde/test/harness"
)

// session is one subject that serves one topology to the proxies.
type session struct {
	*testing.B
	name     string
	topology topology
	pid      int
	role     *rig.Process // nil for sonde-cp
	fleet    *fleet
	identity *sondecp.Identity
	// payload has the expected form of changes, and forms the current form of each service.
	payload *payload
	forms   forms
	// change starts a change of a service. changed ends it, after it has reached the proxies.
	change  func(service int) error
	changed func() error
}

// start starts a subject without connected proxies.
func start(b *testing.B, subject string, w topology) *session {
	b.Helper()
	s := &session{B: b, name: subject, topology: w, changed: func() error { return nil }, forms: w.forms()}
	var state, address string
	if subject == subjectSonde {
		state, address = s.startSonde()
	} else {
		state = filepath.Join(b.TempDir(), "state")
		s.must(sondecp.MakeState(state, mesh.DefaultMesh))
		s.role = rig.Start(b, subject, nil, state, w.String())
		s.pid, address = s.role.PID(), s.role.Address
		s.change = func(service int) error { return s.role.Tell("change %d", service) }
		s.changed = s.role.Done
	}
	var err error
	s.payload, err = generate(w)
	s.must(err)
	s.identity, err = sondecp.OpenIdentity(state)
	s.must(err)
	s.fleet = newFleet(b, w, s.identity, address)
	return s
}

// must ends the benchmark if err is not nil.
func (s *session) must(err error) {
	s.Helper()
	if err != nil {
		trouble := ""
		if s.fleet != nil {
			trouble = s.fleet.trouble()
		}
		s.Fatalf("%s, %s: %v; %s", s.name, s.topology, err, trouble)
	}
}

// startSonde runs sonde-cp with a directory of the topology's files.
func (s *session) startSonde() (state, address string) {
	program, err := harness.BuildInto(s.Context(), s.TempDir(), "cmd/sonde-cp")
	s.must(err)
	m := harness.New(s, harness.Options{Programs: harness.Programs{ControlPlane: program}, Prepare: func(m *harness.Machine) error {
		for _, o := range s.topology.objects() {
			if err := put(m, o); err != nil {
				return err
			}
		}
		joined := map[mesh.ID]string{}
		for i := range s.topology.owners() {
			joined[proxyID(i)] = workload(i)
		}
		return errors.Join(sondecp.MakeState(m.StateDir(), mesh.DefaultMesh), sondecp.Join(m.StateDir(), joined))
	}})
	s.pid = m.ControlPlane.PID()
	now := s.topology.forms()
	s.change = func(service int) error { return put(m, s.topology.turn(service, now)) }
	return m.StateDir(), m.Agents
}

// put writes the file of an object. A Mesh overwrites the machine's file.
func put(m *harness.Machine, o mesh.Object) error {
	data, err := storetest.Encode(o)
	if err != nil {
		return err
	}
	file := fmt.Sprintf("%s-%s.yaml", o.Key().Kind, o.Key().Name)
	if o.Key().Kind == mesh.KindMesh {
		file = "mesh.yaml"
	}
	return m.Put(file, string(data))
}

// cpu is the CPU time of all threads of the subject.
func (s *session) cpu() time.Duration {
	spent, err := proc.CPU(s.pid)
	s.must(err)
	return spent.Ran
}

func (s *session) wait(d time.Duration) { s.must(run.Sleep(s.Context(), d)) }

// restingCPU is cpu of the process at rest.
func (s *session) restingCPU() time.Duration {
	spent, err := proc.RestingCPU(s.Context(), s.pid)
	s.must(err)
	return spent
}

// cost calls do, and returns the subject's CPU time for it until it is at rest. On request, it writes a profile of
// sonde-builder.
func (s *session) cost(do func()) time.Duration {
	before := s.restingCPU()
	if *profiles != "" && s.name == subjectBuilder {
		s.must(s.role.Ask("profile %s", filepath.Join(*profiles, filepath.Base(s.Name())+".pprof")))
		defer func() { s.must(s.role.Ask("profiled")) }()
	}
	do()
	return s.restingCPU() - before
}

func (s *session) rss() float64 {
	m, err := memorytest.Of(s.pid)
	s.must(err)
	return m.RssAnon
}

// restingRSS is rss once it no longer changes. Roles first collect garbage and return memory; sonde-cp has no command
// for that.
func (s *session) restingRSS() float64 {
	if s.role != nil {
		for range 2 { // the second collection frees objects with a finalizer
			s.must(s.role.Ask("collect"))
		}
	}
	bytes, err := proc.RestingRSS(s.Context(), s.pid)
	s.must(err)
	return bytes
}

// connect connects all proxies at once, and returns when each had its whole configuration, or its stream if the
// subject is bare.
func (s *session) connect() []time.Duration {
	s.fleet.open()
	if s.name == subjectBare {
		times, err := s.fleet.linked.Wait(s.Context())
		s.must(err)
		return times
	}
	times, err := s.fleet.settled.Wait(s.Context())
	s.must(err)
	s.must(s.fleet.check(s.topology))
	return times
}

// expect records when each proxy that sees the service has sent the ACK of its next change.
func (s *session) expect(service int) *arrivals.Arrivals {
	s.forms[service] = !s.forms[service]
	first, last := s.topology.viewers(service)
	a := arrivals.New(first, last, s.payload.in(service, s.forms).Version)
	s.fleet.changed[s.topology.serviceName(service)].Store(a)
	return a
}

// changeOnce makes one change, and returns when each proxy received it.
func (s *session) changeOnce(service int) []time.Duration {
	a := s.expect(service)
	s.must(s.change(service))
	times, err := a.Wait(s.Context())
	s.must(err)
	s.must(s.changed())
	return times
}

// series makes one change after the other, and reports their times and costs.
func (s *session) series(service func(i int) int) {
	const warmUp = 3
	for i := range warmUp {
		s.changeOnce(service(i))
	}
	var all arrivals.Changes
	cpu := s.cost(func() {
		for i := 0; s.Loop(); i++ {
			all = append(all, s.changeOnce(service(i)))
		}
	})
	all.Report(s.B)
	s.ReportMetric(float64(cpu)/float64(len(all)), "cpu-ns/op")
}

// inTurn changes all services, one after the other.
func (s *session) inTurn(i int) int { return i % s.topology.services }
