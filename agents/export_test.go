package agents

import (
	"cmp"
	"time"

	"golang.org/x/time/rate"
)

// Limits are those of Options that only tests change.
type Limits struct {
	JoinRate                                         rate.Limit
	JoinBurst, MaxSessions, TokenChecks, MaxAnswer   int
	HelloTimeout, SilentAfter, Recheck, TokenTimeout time.Duration
}

// SetLimits sets the limits of o that l has.
func (o *Options) SetLimits(l Limits) {
	o.joinRate, o.joinBurst = cmp.Or(l.JoinRate, o.joinRate), cmp.Or(l.JoinBurst, o.joinBurst)
	o.maxSessions, o.helloTimeout = cmp.Or(l.MaxSessions, o.maxSessions), cmp.Or(l.HelloTimeout, o.helloTimeout)
	o.maxAnswer = cmp.Or(l.MaxAnswer, o.maxAnswer)
	o.tokenChecks, o.tokenTimeout = cmp.Or(l.TokenChecks, o.tokenChecks), cmp.Or(l.TokenTimeout, o.tokenTimeout)
	o.silentAfter, o.recheck = cmp.Or(l.SilentAfter, o.silentAfter), cmp.Or(l.Recheck, o.recheck)
}

// AnswerBegun reports whether a query is being answered.
func (s *Server) AnswerBegun(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.queries[id] != nil && s.queries[id].begun
}
