package agents

import (
	"cmp"

	"golang.org/x/time/rate"

	"github.com/sonde-mesh/sonde/agents/join"
	"github.com/sonde-mesh/sonde/agents/session"
)

// Limits are options that only tests change.
type Limits struct {
	JoinRate                                       rate.Limit
	JoinBurst, MaxSessions, TokenChecks, MaxAnswer int
}

// SetLimits copies the limits that are set in l to o.
func (o *Options) SetLimits(l Limits) {
	j, s := cmp.Or(o.joins, join.DefaultLimits()), cmp.Or(o.sessions, session.DefaultLimits())
	j.Rate, j.Burst = cmp.Or(l.JoinRate, j.Rate), cmp.Or(l.JoinBurst, j.Burst)
	j.TokenChecks = cmp.Or(l.TokenChecks, j.TokenChecks)
	s.Sessions, s.Answer = cmp.Or(l.MaxSessions, s.Sessions), cmp.Or(l.MaxAnswer, s.Answer)
	o.joins, o.sessions = j, s
}
