// Package partition distinguishes members that are dead from members that cannot be reached: when many become silent at
// once, it is more likely that the path to them is broken than that all are dead. It uses only its input and the State
// that it returns: no clock, no log, no I/O.
//
// Members are anything with a regular sign of life, such as leases of nodes or proxies of a mesh.
package partition

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Verdict about a group of members.
type Verdict string

// The verdicts. Unknown means that neither may be concluded.
const (
	Seen    Verdict = "seen"
	Lost    Verdict = "lost"
	Unknown Verdict = "unknown"
)

// Cause of a verdict that is not Seen.
type Cause string

// The causes.
const (
	// APIServerAway: the reading failed because the API server did not answer.
	APIServerAway Cause = "api-server-away"
	// Throttled: the reading failed because the API server asks for fewer requests.
	Throttled Cause = "throttled"
	// Unreadable: the reading failed although there was a response, for example for lack of rights.
	Unreadable Cause = "unreadable"
	// Unheard: too many members have given no sign of life since the reader started, so it is unknown for how long they
	// have been silent.
	Unheard Cause = "unheard"
	// OneZone: all silent members are in one zone, and members of another zone are alive.
	OneZone Cause = "one-zone"
	// All: any other loss.
	All Cause = "all"
)

// Group of members: the whole, or one zone.
type Group struct {
	// Zone is "" for the whole.
	Zone string
}

// Whole is the group of all members.
var Whole = Group{}

// String returns whole, or zone/ and the name.
func (g Group) String() string {
	if g == Whole {
		return "whole"
	}
	return "zone/" + g.Zone
}

// Member belongs to the whole, and to a zone if it has one.
type Member struct {
	Name string
	// Zone is "" for a member without zone.
	Zone string
	// Heard is the last sign of life, on the clock of Reading.At; zero if there was none since the reader started.
	Heard time.Time
}

// Reading is one reading of the members.
type Reading struct {
	At time.Time
	// Failed is why the reading failed; "" if it succeeded. If it failed, Members is ignored.
	Failed  Cause
	Members []Member
}

// Status of a group.
type Status struct {
	Verdict Verdict
	// Cause is "" if the verdict is Seen.
	Cause Cause
	// Since is when the verdict began.
	Since time.Time
	// Members counts the members of the last successful reading. Silent counts the silent ones, Unheard those without a
	// sign of life yet.
	Members, Silent, Unheard int

	// latched means that the group counts as lost until enough readings show the opposite, whatever Verdict is
	// meanwhile.
	latched bool
	calm    int // consecutive readings that show the opposite
	// calmSince is the time of the first of these readings.
	calmSince time.Time
}

// Latched reports whether the group counts as lost until it is seen again: an Unknown verdict does not end it.
func (s Status) Latched() bool { return s.latched }

// State has the status of each group. The zero value is the start of a reader.
type State map[Group]Status

// Restore returns the State of a reader that takes over from another. The groups in lost count as lost since that time.
func Restore(lost map[Group]time.Time) State {
	s := State{}
	for group, since := range lost {
		s[group] = Status{Verdict: Lost, Cause: All, Since: since, latched: true}
	}
	return s
}

// Judge returns the State after a reading. before is not changed. Settings must be valid.
func Judge(before State, r Reading, s Settings) State {
	if r.Failed != "" {
		return blind(before, r)
	}
	now := State{}
	counts, spread := count(r, s.Silence)
	for group, c := range counts {
		now[group] = before[group].judge(c, r.At, s, spread)
	}
	return now
}

// blind returns the State after a failed reading.
func blind(before State, r Reading) State {
	now := maps.Clone(before)
	if now == nil {
		now = State{}
	}
	if _, ok := now[Whole]; !ok {
		now[Whole] = Status{}
	}
	for group, status := range now {
		status.calm = 0 // readings that end a loss must be consecutive
		now[group] = status.becomes(Unknown, r.Failed, r.At)
	}
	return now
}

// tally counts the members of a group.
type tally struct{ members, silent, unheard int }

// count counts the members of each group, and returns the cause of a loss. The whole is included even without members.
func count(r Reading, silence time.Duration) (map[Group]*tally, Cause) {
	counts := map[Group]*tally{Whole: {}}
	silentZones, heardZones := map[string]bool{}, map[string]bool{}
	for i := range r.Members {
		m := &r.Members[i]
		zone := Group{Zone: m.Zone}
		if counts[zone] == nil {
			counts[zone] = &tally{}
		}
		counts[Whole].add(m, r.At, silence)
		if zone != Whole {
			counts[zone].add(m, r.At, silence)
		}
		switch {
		case m.Heard.IsZero():
		case m.silent(r.At, silence):
			silentZones[m.Zone] = true
		default:
			heardZones[m.Zone] = true
		}
	}
	if len(silentZones) == 1 && slices.ContainsFunc(slices.Collect(maps.Keys(heardZones)),
		func(zone string) bool { return !silentZones[zone] }) {
		return counts, OneZone
	}
	return counts, All
}

func (t *tally) add(m *Member, at time.Time, silence time.Duration) {
	t.members++
	switch {
	case m.Heard.IsZero():
		t.unheard++
	case m.silent(at, silence):
		t.silent++
	}
}

func (m *Member) silent(at time.Time, silence time.Duration) bool { return at.Sub(m.Heard) >= silence }

// judge returns the status of a group after a reading. Unheard members may be silent or not: if the verdict depends on
// that, it is Unknown. In a lost group they count as silent, since a previous reader has judged them.
func (s Status) judge(c *tally, at time.Time, settings Settings, spread Cause) Status {
	s.Members, s.Silent, s.Unheard = c.members, c.silent, c.unheard
	if c.members < fewest {
		s.latched, s.calm = false, 0
		return s.becomes(Seen, "", at)
	}
	least, most := float64(c.silent)/float64(c.members), float64(c.silent+c.unheard)/float64(c.members)
	switch {
	case s.latched && most < settings.Leave:
		if s.calm == 0 {
			s.calmSince = at
		}
		s.calm++
	case s.latched:
		s.calm = 0
	case least >= settings.Enter:
		s.latched, s.calm = true, 0
	case most >= settings.Enter:
		return s.becomes(Unknown, Unheard, at)
	}
	if s.latched && (s.calm < settings.Calm || at.Sub(s.calmSince) < settings.Quiet) {
		if c.silent == 0 { // readings that end a loss, or a new reader: the zone of the silent members is unknown
			spread = cmp.Or(s.lostBy(), spread)
		}
		return s.becomes(Lost, spread, at)
	}
	s.latched, s.calm = false, 0
	return s.becomes(Seen, "", at)
}

// lostBy returns the cause of an ongoing loss, "" without one.
func (s Status) lostBy() Cause {
	if s.Verdict == Lost {
		return s.Cause
	}
	return ""
}

func (s Status) becomes(v Verdict, c Cause, at time.Time) Status {
	if s.Verdict != v || s.Since.IsZero() {
		s.Since = at
	}
	s.Verdict, s.Cause = v, c
	return s
}
