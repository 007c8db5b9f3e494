package freeze

import (
	"context"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/partition"
)

const (
	// judgeEvery is the time between two readings.
	judgeEvery = time.Second
	// warmUp is how long a replica judges nothing that cannot know yet what is silent, and no proxies since it does not hear another replica.
	warmUp = time.Minute
)

// leading is a Freeze whose replica leads. Only its goroutine, and Order with Freeze.mu, change it.
type leading struct {
	*Freeze
	epoch int64
	judge *judge
	// quiet is until when nothing is judged.
	quiet time.Time
	// lacked is since when another replica is not heard, or was not last; lacking that it is so.
	lacked  time.Time
	lacking bool
	// zones are those that nodes have had since this replica leads.
	zones []string
	// based is the verdict on which judge goes on.
	based *Verdict
	// saved is what the secret has, nil while that is not known; saveAgain is before when it is not written, since that has failed.
	saved     *Verdict
	saveAgain time.Time
}

// Lead judges until ctx ends, and then returns nil. It is for the leader, whose epoch its verdicts have.
func (f *Freeze) Lead(ctx context.Context, epoch int64) error {
	l := f.begin(epoch)
	defer f.end(l)
	for range run.EveryOr(ctx, judgeEvery, f.wake) {
		f.o.Loop.Begin()
		l.look(ctx, time.Now())
		l.save(ctx, time.Now())
		f.o.Loop.End()
	}
	return nil
}

// begin goes on with the verdict that holds. Without one it judges nothing yet: there may be one that others know.
func (f *Freeze) begin(epoch int64) *leading {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := &leading{Freeze: f, epoch: epoch, judge: newJudge(f.verdict), based: f.verdict, quiet: f.started.Add(warmUp)}
	if f.verdict.Epoch == 0 {
		l.quiet = time.Now().Add(warmUp)
	}
	f.leader = l
	return l
}

func (f *Freeze) end(l *leading) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leader == l {
		f.leader = nil
	}
}

// look reads and judges once.
func (l *leading) look(ctx context.Context, now time.Time) {
	nodes := l.readNodes(now)
	proxies := l.readProxies(ctx, now)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range nodes.Members {
		if !slices.Contains(l.zones, m.Zone) {
			l.zones = append(l.zones, m.Zone)
		}
	}
	before := l.verdict
	if before != l.based { // heard from another replica since
		l.judge, l.based = newJudge(before), before
	}
	switch {
	case l.mode == Off:
		l.judge = newJudge(&Verdict{})
		l.publish(&Verdict{})
	case before.Epoch > l.epoch: // another one leads, and this one does not know it yet
	case now.Before(l.quiet):
	default:
		l.publish(l.judge.next(before, readings{nodes, proxies}))
	}
}

// readNodes counts a node whose kubelet is not heard as silent for long.
func (l *leading) readNodes(now time.Time) partition.Reading {
	r := partition.Reading{At: now}
	nodes, err := l.o.Nodes()
	if err != nil {
		r.Failed = partition.APIServerAway
		return r
	}
	for name, n := range nodes {
		m := partition.Member{Name: name, Zone: n.Zone, Heard: now}
		if n.Unknown {
			m.Heard = now.Add(-nodeSilence)
		}
		r.Members = append(r.Members, m)
	}
	return r
}

// readProxies returns nil while another replica has not been heard for less than warmUp: its agents come to others. Those that it may see count as
// unheard after that. Streams are asked for only if the sessions alone could make a group lost, since that costs all replicas something.
func (l *leading) readProxies(ctx context.Context, now time.Time) *partition.Reading {
	if lacking := len(l.o.Lacking()) > 0; lacking && !l.lacking {
		l.lacked, l.lacking = now, true
	} else if !lacking {
		l.lacking = false
	}
	if now.Sub(l.lacked) < warmUp {
		return nil
	}
	r := &partition.Reading{At: now, Members: l.o.Proxies(now)}
	if !mayBeLost(r) {
		return r
	}
	streams, complete := l.o.Streams(ctx)
	for i := range r.Members {
		m := &r.Members[i]
		switch {
		case streams[m.Name]:
			m.Heard = now
		case m.Heard.Before(now) && (!complete || l.lacking):
			m.Heard = time.Time{}
		}
	}
	return r
}

// mayBeLost reports whether so many members of a group are not heard now that it could become lost, or stay it.
func mayBeLost(r *partition.Reading) bool {
	all, silent := map[string]int{}, map[string]int{}
	for i := range r.Members {
		m := &r.Members[i]
		for _, zone := range slices.Compact([]string{"", m.Zone}) {
			all[zone]++
			if m.Heard.Before(r.At) {
				silent[zone]++
			}
		}
	}
	for zone, n := range silent {
		if float64(n) >= partition.LeaveFor(partition.DefaultEnter)*float64(all[zone]) {
			return true
		}
	}
	return false
}

// publish makes v the verdict that holds, if it says something new, or the one that holds is of another leader. mu is held.
func (l *leading) publish(v *Verdict) {
	before := l.verdict
	if before.Epoch > l.epoch || before.Epoch == l.epoch && v.sameAs(before) {
		return
	}
	v.Epoch, v.Count = l.epoch, 1
	if before.Epoch == l.epoch {
		v.Count = before.Count + 1
	}
	l.verdict, l.based = v, v
	l.apply()
	l.report(before, v)
	l.o.Tell()
}
