package dashboard

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// readEvery is the least time between two readings of a control plane of an earlier release, without the call Watch.
	// One that takes long is followed by a pause of idleShare times as long, so that the control plane is busy with them
	// for at most a tenth of the time.
	readEvery = time.Second
	idleShare = 9
	// failedLimit limits the pause after a reading that failed, so that the page sees soon that it is over.
	failedLimit = 30 * time.Second
	// readPatience is how much longer than the last one a reading may take until the page says that it is blind.
	readPatience = 4 * time.Second
	// readLimit limits one reading, lookLimit one connection.
	readLimit = 10 * time.Second
	lookLimit = 5 * time.Minute
	// unseenAfter is how long a page counts as open after its last request.
	unseenAfter = 5 * time.Second
	// askEvery is how often agents are asked whether they live, which takes status.AskTakes if one hangs.
	askEvery = 15 * time.Second
)

// Call calls the control plane within a time, over one connection. Its errors are for users.
type Call func(
	ctx context.Context, limit time.Duration, work func(context.Context, adminv1.AdminServiceClient) error,
) error

// reading is what one reading has found, and what is wrong by it.
type reading struct {
	*status.Reading
	report *status.Report
}

// parts are the sections of the page, and how each is made of a reading.
var parts = []struct {
	name string
	of   func(*reading) (any, error)
}{
	{"problems", func(r *reading) (any, error) {
		return problemsOf(r.report), cmp.Or(r.Readiness(), status.Undenied(r.HealthErr), status.Undenied(r.RestartsErr))
	}},
	{"workloads", func(r *reading) (any, error) {
		return workloadsOf(r.Facts, r.RestartsErr), cmp.Or(r.ObjectsErr, status.Undenied(r.RestartsErr))
	}},
	{"services", func(r *reading) (any, error) { return servicesOf(r.Facts, r.report), r.ObjectsErr }},
	{"proxies", func(r *reading) (any, error) { return proxiesOf(r.Facts, r.report), r.ObjectsErr }},
	{"restarts", func(r *reading) (any, error) { return restartsOf(r.Restarts), r.RestartsErr }},
	{"controlplane", func(r *reading) (any, error) {
		return planeOf(r.Facts, r.ObjectsErr == nil), cmp.Or(r.HealthErr, status.Undenied(r.Readiness()))
	}},
}

// Section is a part of the page as it was read last.
type Section struct {
	// ReadAt is when it was read, nil before the first time.
	ReadAt *time.Time `json:"readAt,omitempty"`
	// Error is why it could not be read since, in words, and Denied that the caller lacks a right.
	Error  string `json:"error,omitempty"`
	Denied bool   `json:"denied,omitempty"`
	// Absent means that nothing is there to be read, for the reason in Error.
	Absent bool `json:"absent,omitempty"`
	// Due is when it must be read again, nil if that is when the others must.
	Due *time.Time `json:"due,omitempty"`
	// Revision changes with the data.
	Revision string `json:"revision,omitempty"`

	data json.RawMessage
	read bool // in this round
}

// source reads the control plane while a page is open.
type source struct {
	call Call
	wake run.Signal
	// clusters returns who reads the WatchedClusters, and an error if sondectl has no access to them.
	clusters     func() (Clusters, error)
	wakeClusters run.Signal

	asked time.Time // when agents were asked
	// began is when the last reading began, or to connect. took is how long the control plane worked for the last one.
	began time.Time
	took  time.Duration
	// hung are the sessions of those that did not answer, by their beginning.
	hung map[mesh.ID]*timestamppb.Timestamp

	mu   sync.Mutex
	seen time.Time
	// due is when the page must have the next reading.
	due      time.Time
	sections map[string]*Section
}

func newSource(call Call, clusters func() (Clusters, error)) *source {
	s := &source{
		call: call, wake: run.NewSignal(), clusters: clusters, wakeClusters: run.NewSignal(),
		sections: map[string]*Section{sectionWatchdog: {}},
	}
	for _, p := range parts {
		s.sections[p.name] = &Section{}
	}
	return s
}

// look records the request of a page. It returns the sections without their data, and when the next reading is due.
func (s *source) look() (map[string]Section, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = time.Now()
	s.wake.Set()
	s.wakeClusters.Set()
	all := map[string]Section{}
	for name, section := range s.sections {
		all[name] = *section
	}
	return all, s.due
}

// watched reports whether a page is open.
func (s *source) watched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.seen) < unseenAfter
}

// run reads while a page is open, until ctx ends.
func (s *source) run(ctx context.Context) {
	for range run.EveryOr(ctx, time.Hour, s.wake) {
		for s.watched() && ctx.Err() == nil {
			s.begin()
			pause := readEvery
			s.began = time.Now()
			if err := s.call(ctx, lookLimit+readLimit, s.follow); err != nil {
				s.fail(err)
				pause = min(max(readEvery, idleShare*time.Since(s.began)), failedLimit)
				if grpcstatus.Code(err) == codes.ResourceExhausted {
					pause = backOff()
				}
			} else if s.denied() {
				pause = backOff()
			}
			_ = run.Sleep(ctx, pause) // the loop sees the end of ctx
		}
	}
}

// backOff returns the pause after the control plane has refused a call, which differs among pages.
func backOff() time.Duration {
	return failedLimit*3/4 + rand.N(failedLimit/2) //nolint:gosec // jitter, not a secret
}

// once reads a single time. It is an error if the caller may read nothing.
func (s *source) once(ctx context.Context) error {
	began := time.Now()
	if err := s.call(ctx, readLimit, s.readOnce); err != nil {
		return err
	}
	s.setDue(time.Now().Add(time.Since(began) + readPatience))
	if !s.denied() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.New(s.sections[parts[0].name].Error)
}

// denied reports whether the caller may read nothing.
func (s *source) denied() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range parts {
		if !s.sections[p.name].Denied {
			return false
		}
	}
	return true
}

// follow takes over readings over one connection, as long as a page is open.
func (s *source) follow(ctx context.Context, api adminv1.AdminServiceClient) error {
	err := s.watch(ctx, api)
	if grpcstatus.Code(err) == codes.Unimplemented { // an earlier release
		return s.poll(ctx, api)
	}
	return err
}

// watch takes over the readings that the control plane sends.
func (s *source) watch(ctx context.Context, api adminv1.AdminServiceClient) error {
	start := time.Now()
	stream, err := status.Watch(ctx, api)
	if err != nil {
		return err //nolint:wrapcheck // call explains it
	}
	defer stream.Close()
	for read := false; s.watched() && time.Since(start) < lookLimit; read = true {
		s.begin()
		r, err := stream.Next()
		switch {
		case status.IsDenied(err):
			if !s.denied() { // otherwise the last reading says why, for each section
				s.take(&status.Reading{
					Facts: &status.Facts{Now: time.Now()}, HealthErr: err, ObjectsErr: err, RestartsErr: err,
				})
			}
			return nil
		case read && err != nil:
			s.began = time.Now() // the control plane did not work for it since the last reading
			return err           //nolint:wrapcheck // call explains it
		case err != nil:
			return err //nolint:wrapcheck // call explains it
		}
		s.take(r)
		s.setDue(time.Now().Add(r.Next + readPatience))
	}
	return nil
}

// poll reads again and again.
func (s *source) poll(ctx context.Context, api adminv1.AdminServiceClient) error {
	for start := time.Now(); s.watched() && time.Since(start) < lookLimit; {
		s.began = time.Now()
		if err := s.readOnce(ctx, api); err != nil {
			return err
		}
		pause := s.pause()
		s.setDue(time.Now().Add(pause + time.Since(s.began) + readPatience))
		if err := run.Sleep(ctx, pause); err != nil {
			return err
		}
	}
	return nil
}

// pause returns how long to wait after a reading. It leaves out the wait for agents that hang.
func (s *source) pause() time.Duration {
	took := time.Since(s.began)
	if !s.asked.Before(s.began) {
		took = max(took-status.AskTakes, min(took, s.took))
	}
	s.took = took
	return max(readEvery, idleShare*took)
}

func (s *source) setDue(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = t
}

// readOnce reads all that the caller may read. The error is the reason for sections that it could not read.
func (s *source) readOnce(ctx context.Context, api adminv1.AdminServiceClient) error {
	s.begin()
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	ask := time.Since(s.asked) >= askEvery
	r := status.ReadAll(ctx, api, ask)
	if r.ObjectsErr == nil {
		s.remember(r.Facts, ask)
	}
	s.take(r)
	return cmp.Or(status.Undenied(r.Readiness()), status.Undenied(r.HealthErr), status.Undenied(r.RestartsErr))
}

// take judges a reading and publishes it.
func (s *source) take(r *status.Reading) { s.publish(&reading{r, status.Judge(r.Facts)}) }

// remember keeps which agents hang until they are asked again.
func (s *source) remember(f *status.Facts, asked bool) {
	if asked {
		s.asked, s.hung = f.Now, map[mesh.ID]*timestamppb.Timestamp{}
	}
	for _, p := range f.Proxies {
		id, agent := mesh.MakeID(p.GetMesh(), p.GetName()), p.GetAgent()
		switch began := agent.GetConnectedSince(); {
		case agent == nil:
		case asked && agent.GetUnresponsive():
			s.hung[id] = began
		case s.hung[id] != nil && s.hung[id].AsTime().Equal(began.AsTime()):
			agent.Unresponsive = true
		}
	}
}

// begin begins a round.
func (s *source) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range parts {
		s.sections[p.name].read = false
	}
}

// publish puts what was read into the sections.
func (s *source) publish(r *reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range parts {
		section := s.sections[p.name]
		content, err := p.of(r)
		switch {
		case status.IsDenied(err):
			*section = Section{Denied: true, Error: shorten(grpcstatus.Convert(err).Message()), read: true}
			continue
		case err != nil:
			section.Error = shorten(grpcstatus.Convert(err).Message()) // until fail explains it
			continue
		}
		*section = sectionOf(content, r.Now)
	}
}

// sectionOf returns a section that was read at a time.
func sectionOf(content any, at time.Time) Section {
	data, err := json.Marshal(content)
	if err != nil {
		panic(err) // it has nothing that JSON lacks
	}
	sum := sha256.Sum256(data)
	return Section{ReadAt: &at, Revision: hex.EncodeToString(sum[:8]), data: data, read: true}
}

// fail says why sections were not read in this round.
func (s *source) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range parts {
		if section := s.sections[p.name]; !section.read {
			section.Error = shorten(err.Error())
		}
	}
}

// section returns a section with its data, false for an unknown one.
func (s *source) section(name string) (Section, json.RawMessage, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	section := s.sections[name]
	if section == nil {
		return Section{}, nil, false
	}
	return *section, slices.Clip(section.data), true
}
