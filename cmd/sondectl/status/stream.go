package status

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Stream follows everything that the caller may read by the call Watch, so that only changes are sent. It is for one
// goroutine.
type Stream struct {
	stream adminv1.AdminService_WatchClient
	cancel context.CancelFunc
	// limit ends the call if the next message, or the end of the reading that began at began, is late.
	limit *time.Timer
	late  chan struct{}
	began time.Time // zero between readings
	bytes int       // of the messages of this reading

	meshes     part[meshEntry]
	dataplanes part[*Dataplane]
	services   part[*adminv1.Service]
	proxies    part[*adminv1.Proxy]
	restarts   part[*adminv1.Restart]
	health     []*adminv1.HealthCheck
	probeSets  map[uint64]*adminv1.ProbeSet
	// tails and errs are by section. restartsRest has the fields beside the restarts.
	tails        map[adminv1.WatchRequest_Section]*adminv1.Tail
	errs         map[adminv1.WatchRequest_Section]error
	restartsRest *adminv1.ListRestartsResponse
}

// meshEntry is a mesh with its decoded object.
type meshEntry struct {
	*adminv1.Mesh
	spec *mesh.Mesh
}

// part has the entries of a section by name.
type part[E any] map[string]E

// put takes over a change of a part of s. An entry that cannot be decoded is an error of the section until all entries
// are sent again. The returned error is a message that is invalid.
func put[E, M any](
	s *Stream, p *part[E], m *adminv1.WatchResponse, entries []M, decode func(M) (E, error),
) error {
	if *p == nil || m.GetReset_() {
		*p = part[E]{}
	}
	if len(entries) != len(m.GetNames()) {
		return status.Errorf(codes.Internal, "section %s: %d entries with %d names", m.GetSection(), len(entries),
			len(m.GetNames()))
	}
	for i, name := range m.GetNames() {
		e, err := decode(entries[i])
		if err != nil {
			s.errs[m.GetSection()] = err
			continue
		}
		(*p)[name] = e
	}
	for _, name := range m.GetRemoved() {
		delete(*p, name)
	}
	if len(*p) > maxEntries {
		return status.Errorf(codes.Internal, "section %s: more than %d entries", m.GetSection(), maxEntries)
	}
	return nil
}

func same[M any](m M) (M, error) { return m, nil }

// sorted returns the entries in the order of a list.
func (p part[E]) sorted() []E {
	all := make([]E, 0, len(p))
	for _, name := range slices.Sorted(maps.Keys(p)) {
		all = append(all, p[name])
	}
	return all
}

const (
	// messageLimit is how much later than announced a message of a Stream may come, readingLimit how much later than its
	// first message a whole reading.
	messageLimit = 10 * time.Second
	readingLimit = time.Minute
	// maxEntries bounds a section: in a reading, new entries may come before old ones are removed. maxBytes bounds the
	// messages of a reading.
	maxEntries = 2 * adminv1.MaxListed
	maxBytes   = 128 << 20
)

// sections are those that a Stream follows.
var sections = []adminv1.WatchRequest_Section{
	adminv1.WatchRequest_HEALTH, adminv1.WatchRequest_MESHES, adminv1.WatchRequest_DATAPLANES,
	adminv1.WatchRequest_SERVICES, adminv1.WatchRequest_PROXIES, adminv1.WatchRequest_RESTARTS,
}

// Watch returns a Stream. The caller must close it. A control plane of an earlier release answers Next with
// UNIMPLEMENTED.
func Watch(ctx context.Context, api adminv1.AdminServiceClient) (*Stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := newStream()
	s.cancel = cancel
	s.limit = time.AfterFunc(messageLimit, func() {
		close(s.late)
		cancel()
	})
	var err error
	s.stream, err = api.Watch(ctx, &adminv1.WatchRequest{Sections: sections})
	if err != nil {
		s.Close()
		return nil, err //nolint:wrapcheck // the caller explains it
	}
	return s, nil
}

func newStream() *Stream {
	return &Stream{
		late:  make(chan struct{}),
		tails: map[adminv1.WatchRequest_Section]*adminv1.Tail{}, errs: map[adminv1.WatchRequest_Section]error{},
	}
}

// Close ends the call.
func (s *Stream) Close() {
	s.limit.Stop()
	s.cancel()
}

// Next waits for the next reading. The error is a gRPC status, or says what could not be decoded.
func (s *Stream) Next() (*Reading, error) {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			select {
			case <-s.late:
				return nil, status.Errorf(codes.Unavailable,
					"the control plane has sent no message for %s, or no whole reading for %s", messageLimit, readingLimit)
			default:
				return nil, err //nolint:wrapcheck // the caller explains it
			}
		}
		if end := m.GetReading(); end != nil {
			next := max(0, end.GetNext().AsDuration())
			s.began, s.bytes = time.Time{}, 0
			s.allow(next + messageLimit)
			r := s.reading(time.Now().Add(-max(0, end.GetAge().AsDuration())))
			r.Next = next
			return r, nil
		}
		if s.began.IsZero() {
			s.began = time.Now()
		}
		s.allow(min(messageLimit, readingLimit-time.Since(s.began)))
		if err := s.take(m); err != nil {
			return nil, err
		}
	}
}

// allow sets how long the next message may take, unless the last one was late.
func (s *Stream) allow(d time.Duration) {
	if s.limit.Stop() {
		s.limit.Reset(d)
	}
}

// take takes over a change of a section, unless it is one that was not asked for.
func (s *Stream) take(m *adminv1.WatchResponse) (err error) {
	if s.bytes += proto.Size(m); s.bytes > maxBytes {
		return status.Errorf(codes.Internal, "the control plane sends a reading of more than %d bytes", maxBytes)
	}
	section := m.GetSection()
	if !slices.Contains(sections, section) {
		return nil
	}
	if e := m.GetError(); e != nil {
		s.errs[section] = status.Error(codes.Code(e.GetCode()), e.GetMessage())
		return nil
	}
	if m.GetReset_() {
		delete(s.errs, section)
	}
	var tail *adminv1.Tail
	switch section {
	case adminv1.WatchRequest_MESHES:
		err = put(s, &s.meshes, m, m.GetMeshes().GetMeshes(), func(e *adminv1.Mesh) (meshEntry, error) {
			spec, err := specOf(e)
			return meshEntry{e, spec}, err
		})
		tail = m.GetMeshes().GetTail()
	case adminv1.WatchRequest_DATAPLANES:
		err = put(s, &s.dataplanes, m, m.GetDataplanes().GetDataplanes(), decode)
		if m.GetRest() {
			s.probeSets = byID(m.GetDataplanes().GetProbeSets())
		}
		tail = m.GetDataplanes().GetTail()
	case adminv1.WatchRequest_SERVICES:
		err = put(s, &s.services, m, m.GetServices().GetServices(), same)
		tail = m.GetServices().GetTail()
	case adminv1.WatchRequest_PROXIES:
		err = put(s, &s.proxies, m, m.GetProxies().GetProxies(), same)
		tail = m.GetProxies().GetTail()
	case adminv1.WatchRequest_RESTARTS:
		err = put(s, &s.restarts, m, m.GetRestarts().GetRestarts(), same)
		if m.GetRest() {
			s.restartsRest = m.GetRestarts()
		}
	case adminv1.WatchRequest_HEALTH:
		s.health = m.GetHealth().GetChecks()
	}
	if m.GetRest() {
		s.tails[section] = tail
	}
	return err
}

// reading returns what was sent until now, which the control plane read at a time.
func (s *Stream) reading(at time.Time) *Reading {
	r := &Reading{Facts: &Facts{Now: at}, HealthErr: s.errs[adminv1.WatchRequest_HEALTH]}
	if r.HealthErr == nil {
		r.Health = s.health
	}
	r.ObjectsErr = cmp.Or(s.errs[adminv1.WatchRequest_MESHES], s.errs[adminv1.WatchRequest_DATAPLANES],
		s.errs[adminv1.WatchRequest_SERVICES], s.errs[adminv1.WatchRequest_PROXIES])
	if r.ObjectsErr == nil {
		s.setObjects(r.Facts)
	}
	switch err := s.errs[adminv1.WatchRequest_RESTARTS]; status.Code(err) {
	case codes.OK:
		r.Restarts = &adminv1.ListRestartsResponse{
			Restarts: s.restarts.sorted(), Round: s.restartsRest.GetRound(), Unhelpful: s.restartsRest.GetUnhelpful(),
			Guarded: s.restartsRest.GetGuarded(), Tail: s.restartsRest.GetTail(),
		}
	case codes.FailedPrecondition: // as in ReadRestarts
	default:
		r.RestartsErr = err
	}
	r.explain()
	return r
}

func (s *Stream) setObjects(f *Facts) {
	for _, e := range s.meshes.sorted() {
		f.Meshes, f.Specs = append(f.Meshes, e.Mesh), append(f.Specs, e.spec)
	}
	f.ProbeSets = s.probeSets
	f.Dataplanes, f.Services, f.Proxies = s.dataplanes.sorted(), s.services.sorted(), s.proxies.sorted()
	f.setTails(s.tails[adminv1.WatchRequest_MESHES], s.tails[adminv1.WatchRequest_DATAPLANES],
		s.tails[adminv1.WatchRequest_SERVICES], s.tails[adminv1.WatchRequest_PROXIES])
}
