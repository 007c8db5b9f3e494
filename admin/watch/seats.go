package watch

import (
	"net/netip"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Maximum numbers of viewers, in all and of one caller at one source.
const (
	maxViewers   = 256
	maxPerCaller = 64
)

// viewer is whom seats are counted for.
type viewer struct {
	caller string
	source netip.Prefix
}

// seat is the place of a viewer.
type seat struct {
	of   viewer
	lost func()
}

// seats are shared by all callers. When all are taken, a caller with fewer seats gets one of the caller with the most.
type seats struct {
	mu    sync.Mutex
	taken map[viewer][]*seat // the oldest first
	count int
}

// take returns a function that leaves the seat. lost is called once if another caller gets it, and must return at once.
func (s *seats) take(of viewer, lost func()) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := len(s.taken[of])
	if own >= maxPerCaller {
		return nil, errShare
	}
	if s.count >= maxViewers {
		most := s.most()
		if len(s.taken[most]) < own+2 {
			return nil, errFull
		}
		victim := s.taken[most][0]
		s.remove(victim)
		victim.lost()
	}
	mine := &seat{of, lost}
	s.taken[of] = append(s.taken[of], mine)
	s.count++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.remove(mine)
	}, nil
}

var (
	errFull  = status.Errorf(codes.ResourceExhausted, "%d calls watch already, which is the maximum", maxViewers)
	errShare = status.Errorf(codes.ResourceExhausted, "%d calls of this caller watch already, which is the maximum",
		maxPerCaller)
)

// most returns the caller with the most seats. The caller holds mu.
func (s *seats) most() (most viewer) {
	for of, seats := range s.taken {
		if len(seats) > len(s.taken[most]) {
			most = of
		}
	}
	return most
}

// remove frees a seat, unless that has been done. The caller holds mu.
func (s *seats) remove(one *seat) {
	left := slices.DeleteFunc(s.taken[one.of], func(other *seat) bool { return other == one })
	s.count -= len(s.taken[one.of]) - len(left)
	if s.taken[one.of] = left; len(left) == 0 {
		delete(s.taken, one.of)
	}
}
