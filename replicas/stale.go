package replicas

import (
	"context"
	"fmt"
	"time"

	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

const (
	// staleAfter is how many times Compare, which is called each second, finds the same lack before this replica is stale. It is less than
	// takenTimeout, after which pods get ready although the Envoys that are connected here do not know them. Calls are counted, not time: a process that
	// was stopped for a while has not read yet what has come meanwhile.
	staleAfter = 5
	// lostGrace is how long what a replica has said counts that is not heard any more: its stream may be opened again.
	lostGrace = 2 * time.Second
)

// Revisions says how far this replica has read the pods of the mesh, in numbers that grow and are the same for all replicas; 0 for none.
type Revisions interface {
	// Read returns the number of the newest event that this replica has seen, and up to where it has seen all. newest is 0 while this replica is not
	// ready for another reason than being stale: no proxy is better off with it.
	Read(ctx context.Context) (newest, seen uint64)
	// Latest asks for the number of the latest event that there is. The error says that there is no answer.
	Latest(ctx context.Context) (uint64, error)
}

// ConnectRevisions sets what says how far this replica has read. It has to be called before Run and Serve.
func (p *Peers) ConnectRevisions(r Revisions) {
	if p != nil {
		p.revisions = r
	}
}

// Compare compares how far this replica has read with what the others say, and tells them. It is called each second. The error is that of Stale, and
// changed says that the verdict is another one than before.
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
	// A number that the API server does not have is of an etcd that was restored from an older state since. Without an answer it counts.
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

// newestOfOthers needs mu. A replica that is heard counts, also where the API server does not say that it is there: this one may not hear that.
func (p *Peers) newestOfOthers() map[string]uint64 {
	others := map[string]uint64{}
	for name, h := range p.heard {
		if h.lost.IsZero() || p.o.Now().Sub(h.lost) < lostGrace {
			others[name] = h.revision.GetNewestPod()
		}
	}
	return others
}

// revisionMessage needs mu.
func (p *Peers) revisionMessage() *peerv1.ReportMessage {
	return &peerv1.ReportMessage{Message: &peerv1.ReportMessage_Revision{Revision: &peerv1.Revision{NewestPod: p.newest, Stale: p.behind.stale}}}
}

// Stale returns an error that names a replica which has seen pods that this one has not, for longer than a watch is late. Proxies are better off there.
func (p *Peers) Stale() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.behind.err()
}

// behind is what this replica lacks. A target is kept until it is reached: in a busy cluster others are ahead at any moment, though of something else
// each time.
type behind struct {
	// ahead is a replica that has seen events up to target, and late how often this one had not since. All are zero while it lacks nothing.
	ahead  string
	target uint64
	late   int
	// stale holds until a target is reached in time: one that is always late must not take proxies back between two targets.
	stale bool
	// dead is the highest number of a state that etcd has lost.
	dead uint64
}

// compare takes up to where all was seen here, and the newest that each of the others has seen. What was not read yet is behind nothing.
func (b *behind) compare(seen uint64, others map[string]uint64) {
	switch {
	case b.target == 0:
	case seen >= b.target:
		b.stale = b.stale && b.late >= staleAfter
		b.target = 0
	case others[b.ahead] < b.target: // it is lost, or reads anew
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

// due reports whether this replica is late enough to be stale, which it is not yet.
func (b *behind) due() bool { return !b.stale && b.target != 0 && b.late >= staleAfter }

// decide takes the latest number that the API server has.
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
