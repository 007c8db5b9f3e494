package agents

import (
	"cmp"
	"time"

	"golang.org/x/time/rate"

	"github.com/sonde-mesh/sonde/agents/join"
	"github.com/sonde-mesh/sonde/agents/session"
)

// Limits are those of Options that only tests change.
type Limits struct {
	JoinRate                                         rate.Limit
	JoinBurst, MaxSessions, TokenChecks, MaxAnswer   int
	HelloTimeout, SilentAfter, Recheck, TokenTimeout time.Duration
}

// SetLimits sets the limits of o that l has.
func (o *Options) SetLimits(l Limits) {
	j, s := cmp.Or(o.joins, join.DefaultLimits()), cmp.Or(o.sessions, session.DefaultLimits())
	j.Rate, j.Burst = cmp.Or(l.JoinRate, j.Rate), cmp.Or(l.JoinBurst, j.Burst)
	j.TokenChecks, j.TokenTimeout = cmp.Or(l.TokenChecks, j.TokenChecks), cmp.Or(l.TokenTimeout, j.TokenTimeout)
	s.Sessions, s.Hello = cmp.Or(l.MaxSessions, s.Sessions), cmp.Or(l.HelloTimeout, s.Hello)
	s.Answer, s.SilentAfter = cmp.Or(l.MaxAnswer, s.Answer), cmp.Or(l.SilentAfter, s.SilentAfter)
	o.joins, o.sessions, o.recheck = j, s, cmp.Or(l.Recheck, o.recheck)
}
