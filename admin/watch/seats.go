package watch

import (
	"net/netip"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Maximum numbers of accounts, in all and of one account.
const (
	maxViewers   = 256
	maxPerCaller = 64
)

// account is whom seats are counted for.
type account struct {
	caller string
	// source separates people who share the admin token. It is unset for other callers, since one may have many.
	source netip.Prefix
}

// seat is the place of a viewer.
type seat struct {
	of   account
	lost func()
}

// seats are shared by all accounts. When all are taken, an account with fewer seats gets one of the account with the
// most.
type seats struct {
	mu    sync.Mutex
	taken map[account][]*seat // the oldest first
	count int
}

// take returns a function that leaves the seat. lost is called once if another caller gets it, and must return at once.
func (s *seats) take(of account, lost func()) (leave func(), err error) {
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
	errFull    = status.Errorf(codes.ResourceExhausted, "%d calls watch already, which is the maximum", maxViewers)
	errEvicted = status.Errorf(codes.ResourceExhausted,
		"another caller got the place of this call: %d calls watch, which is the maximum", maxViewers)
	errShare = status.Errorf(codes.ResourceExhausted, "%d calls of this caller watch already, which is the maximum",
		maxPerCaller)
)

// most returns the account with the most seats. The caller holds mu.
func (s *seats) most() (most account) {
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
