package freeze

import (
	"context"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/partition"
)

const (
	// judgeEvery is the interval of judgements.
	judgeEvery = time.Second
	// warmUp is how long a new leader does not judge, since it does not know yet what is silent. When another replica
	// has disconnected, the leader does not judge proxies for the same time.
	warmUp = time.Minute
)

// leading is the state of Freeze at the leader. Only its goroutine, and Order with Freeze.mu, change it.
type leading struct {
	*Freeze
	epoch int64
	judge *judge
	// quiet is the time before which the leader does not judge.
	quiet time.Time
	// lacked is when another replica last disconnected; lacking says that one is disconnected now.
	lacked  time.Time
	lacking bool
	// zones are the zones of all nodes since this replica began to lead.
	zones []string
	// based is the verdict from which judge continues.
	based *Verdict
	// saved is the content of the secret, nil while that is unknown. saveAgain is the time before which a failed write is
	// not retried.
	saved     *Verdict
	saveAgain time.Time
}

// Lead judges until ctx ends, and then returns nil. Only the leader may run it; its verdicts carry epoch.
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

// begin continues from the current verdict. Without one it waits before judging: other replicas may have a verdict.
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

// look reads the state of nodes and proxies, and judges once.
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
	if before != l.based { // another replica's verdict has arrived since
		l.judge, l.based = newJudge(before), before
	}
	switch {
	case l.mode == Off:
		l.judge = newJudge(&Verdict{})
		l.publish(&Verdict{})
	case before.Epoch > l.epoch: // another replica leads, and this one has not noticed yet
	case now.Before(l.quiet):
	default:
		l.publish(l.judge.next(before, readings{nodes, proxies}))
	}
}

// readNodes counts a node with a disconnected kubelet as silent.
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

// readProxies returns nil for warmUp after another replica has disconnected, since the agents of that replica connect
// to others meanwhile. While a replica stays disconnected, proxies without a session or stream are unknown instead of
// silent. It queries Streams, which costs all replicas work, only if the sessions alone could make a group lost.
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

// mayBeLost reports whether enough members of a group are silent now that the group could become lost, or stay lost.
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

// publish makes v the current verdict if it differs, or if the current one is another leader's. The caller holds mu.
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
