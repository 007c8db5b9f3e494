package restarts

import (
	"context"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/test/anymesh"
)

func (s *simulation) startReplica(ctx context.Context) {
	s.named++
	name, host := fmt.Sprint("cp-", s.named), fmt.Sprint("10.0.0.", s.named)
	ahead := anymesh.Pick(s.random, 0, 0, time.Hour, -time.Hour)
	s.Note("%s starts, its clock is ahead by %s", name, ahead)
	s.disturb()
	r, err := s.newReplica(ctx, name, host, ahead)
	if err != nil {
		s.Wrong("%s does not start: %v", name, err)
		return
	}
	if s.roots == nil {
		s.roots = x509.NewCertPool()
		s.roots.AppendCertsFromPEM(r.Serving.CA())
	}
	s.replicas[name] = r
	s.follow()
	time.Sleep(longestWatch)
	s.mu.Lock()
	s.ready = append(s.ready, host)
	s.mu.Unlock()
}

// follow gives all replicas the current list of replicas.
func (s *simulation) follow() {
	all := s.addresses()
	s.tell(func(r *replica) { r.Peers.Follow(maps.Clone(all)) })
}

// unready removes a replica from the Service's endpoints.
func (s *simulation) unready(r *replica) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = slices.DeleteFunc(s.ready, func(host string) bool { return host == r.host })
}

// kill kills a replica. If it leads, its Lease expires a while later.
func (s *simulation) kill(name string) {
	r := s.replicas[name]
	if r == nil {
		return
	}
	s.Note("%s is killed", name)
	s.disturb()
	delete(s.replicas, name)
	delete(s.thaws, name)
	s.unready(r)
	r.end()
	if s.leader == r {
		s.leader, s.leaderless = nil, time.Now().Add(leaseTime)
	}
	s.follow()
}

// diesNow marks a replica that has just written a grant to be killed.
func (s *simulation) diesNow(name string) {
	s.Note("%s dies between the object and the message", name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dying = append(s.dying, name)
}

// frozeItself records that a replica has stopped just before it writes a grant.
func (s *simulation) frozeItself(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.itself = append(s.itself, name)
}

// stopped stops a replica as SIGSTOP does: its started requests continue after it is woken, and messages to it wait.
// If it leads, its Lease expires.
func (s *simulation) stopped(name string) {
	r := s.replicas[name]
	if r == nil || r.frozen {
		return
	}
	d := time.Duration(5+s.random.IntN(90)) * time.Second
	r.stoppedAt = time.Now()
	s.Note("%s is stopped for %s", name, d)
	s.disturb()
	r.frozen = true
	r.transport.freeze()
	s.network.Isolate(r.host, true)
	s.unready(r)
	s.thaws[name] = time.Now().Add(d)
	if s.leader == r {
		s.leader, s.leaderless = nil, time.Now().Add(leaseTime)
	}
}

// wake wakes a replica. If its Lease has expired, the replica detects that soon, but first continues its current
// work.
func (s *simulation) wake(name string) {
	r := s.replicas[name]
	s.Note("%s is woken", name)
	s.disturb()
	delete(s.thaws, name)
	r.frozen = false
	r.transport.thaw()
	s.network.Isolate(r.host, false)
	if r.led != nil {
		if s.holder == r && s.leader == nil && time.Now().Before(s.leaderless) {
			s.leader = r
		} else {
			time.Sleep(s.latency(time.Second))
			r.endTerm()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stops = append(s.stops, [2]time.Time{r.stoppedAt, time.Now()})
	s.ready = append(s.ready, r.host)
}

// known returns a time: a leader that decided at decided knew the state of pods and budgets at that time. A leader
// that was just woken knows only the state from before. The caller holds mu.
func (s *simulation) known(decided time.Time) time.Time {
	at := decided
	for _, stop := range s.stops {
		if decided.After(stop[0]) && decided.Before(stop[1].Add(late)) && stop[0].Before(at) {
			at = stop[0]
		}
	}
	return at.Add(-late)
}

// handOver ends the term of the leader in order.
func (s *simulation) handOver() {
	s.Note("%s hands over", s.leader.name)
	s.leader.endTerm()
	s.leader, s.leaderless = nil, time.Now()
}

// elect makes a replica lead, after the Lease of the last leader has expired.
func (s *simulation) elect(ctx context.Context) {
	if s.leader != nil || time.Now().Before(s.leaderless) || s.apiAway() {
		return
	}
	r := s.anyReplica()
	if r == nil || r.led != nil {
		return
	}
	s.disturb()
	s.epoch = max(s.epoch+1, time.Now().Unix())
	s.mu.Lock()
	s.newest, s.clocks[s.epoch] = s.epoch, r.transport.ahead
	s.mu.Unlock()
	s.leader, s.holder = r, r
	r.lead(ctx, s.epoch)
}
