package replicas

import (
	"context"
	"fmt"
	"time"

	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

const (
	// staleAfter is the number of calls of Compare, one per second, that must find the same events missing before this
	// replica is stale. It is less than takenTimeout, after which pods become ready although the Envoys connected here
	// do not know them. It is a number of calls instead of a time, since a process that was stopped for a while has yet
	// to read what arrived meanwhile.
	staleAfter = 5
	// lostGrace is how long the revision of a disconnected replica is still used, since its stream may be reopened.
	lostGrace = 2 * time.Second
)

// Revisions says how far this replica has read the pods of the mesh. Revisions grow and are the same for all replicas;
// 0 means none.
type Revisions interface {
	// Read returns the newest event that this replica has seen, and up to which one it has seen all. newest is 0 while
	// this replica is not ready for a reason other than staleness: then other replicas must not send their proxies to
	// it.
	Read(ctx context.Context) (newest, seen uint64)
	// Latest asks the API server for the latest event.
	Latest(ctx context.Context) (uint64, error)
}

// ConnectRevisions sets the source of revisions. Call it before Run and Serve.
func (p *Peers) ConnectRevisions(r Revisions) {
	if p != nil {
		p.revisions = r
	}
}

// Compare compares the revision of this replica with the others', and reports it to them. Call it once per second. The
// error is Stale's; changed means that the verdict differs from the previous one.
func (p *Peers) Compare(ctx context.Context) (changed bool, err error) {
	if p == nil || p.revisions == nil {
		return false, nil
	}
	newest, seen := p.revisions.Read(ctx)
	p.mu.Lock()
	before := p.behind.stale
	p.behind.compare(seen, p.newestOfOthers())
	target, due := p.behind.target, p.behind.due()
	p.mu.Unlock()
	// If the API server has no revision as high as target, that is from an etcd that has since been restored from an
	// older state. Without an answer, target is used.
	latest := target
	if due {
		if answer, err := p.revisions.Latest(ctx); err == nil {
			latest = answer
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if due {
		p.behind.decide(latest)
	}
	changed = p.behind.stale != before
	if newest != p.newest || changed {
		p.newest = newest
		for _, s := range p.senders {
			s.revisionDirty = true
			s.wake.Set()
		}
	}
	return changed, p.behind.err()
}

// newestOfOthers returns the newest event of each connected replica, even of a replica that this one does not know from
// the API server yet, since it may have missed that change. The caller holds mu.
func (p *Peers) newestOfOthers() map[string]uint64 {
	others := map[string]uint64{}
	for name, h := range p.remotes {
		if h.lost.IsZero() || p.o.Now().Sub(h.lost) < lostGrace {
			others[name] = h.revision.GetNewestPod()
		}
	}
	return others
}

// revisionMessage returns the message with this replica's revision. The caller holds mu.
func (p *Peers) revisionMessage() *peerv1.ReportMessage {
	return &peerv1.ReportMessage{Message: &peerv1.ReportMessage_Revision{Revision: &peerv1.Revision{NewestPod: p.newest,
		Stale: p.behind.stale}}}
}

// Stale returns an error that names a replica that has seen changes of pods that this one has missed for longer than a
// watch is usually late. Proxies should connect to that replica.
func (p *Peers) Stale() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.behind.err()
}

// behind is what this replica has not read yet. A target is kept until it is reached, since in a busy cluster others
// are always ahead, with new events each time.
type behind struct {
	// ahead is a replica that has seen events up to target; late is the number of calls that found that this one had
	// not. All are zero while nothing is missing.
	ahead  string
	target uint64
	late   int
	// stale stays set until a target is reached in time, so that a replica that is always late does not get proxies
	// back between two targets.
	stale bool
	// dead is the highest revision that etcd has lost.
	dead uint64
}

// compare takes the revision up to which this replica has seen everything, and the newest revision of each other
// replica. A replica that has read nothing yet is not behind.
func (b *behind) compare(seen uint64, others map[string]uint64) {
	switch {
	case b.target == 0:
	case seen >= b.target:
		b.stale = b.stale && b.late >= staleAfter
		b.target = 0
	case others[b.ahead] < b.target: // that replica is disconnected, or has restarted
		b.target = 0
	default:
		b.late++
		return
	}
	b.ahead, b.late = "", 0
	for name, newest := range others {
		if seen != 0 && newest > max(seen, b.target, b.dead) {
			b.ahead, b.target = name, newest
		}
	}
	b.stale = b.stale && b.target != 0
}

// due reports whether this replica is late enough to become stale.
func (b *behind) due() bool { return !b.stale && b.target != 0 && b.late >= staleAfter }

// decide takes the API server's latest revision.
func (b *behind) decide(latest uint64) {
	if latest < b.target {
		*b = behind{dead: b.target}
		return
	}
	b.stale = true
}

func (b *behind) err() error {
	if !b.stale {
		return nil
	}
	return fmt.Errorf("replica %s has seen changes of pods for more than %d seconds that this one has not: its watch hangs, or the API server that it uses lags",
		b.ahead, staleAfter)
}
