package restarts

import (
	"context"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/test/anymesh"
)

// operation is one kind of event, with its weight among all, and its weight in the variants, in which leaders change
// often.
type operation struct {
	weight, leaders int
	do              func(s *simulation, ctx context.Context)
}

var operations = []operation{
	{14, 6, func(s *simulation, _ context.Context) { s.fail(anymesh.Pick(s.random, 1, 2, 100)) }},
	{2, 0, func(s *simulation, _ context.Context) { s.heal() }},
	{3, 0, func(s *simulation, ctx context.Context) {
		if len(s.replicas) < maxReplicas {
			s.startReplica(ctx)
		}
	}},
	{3, 0, func(s *simulation, _ context.Context) {
		if r := s.anyReplica(); r != nil {
			s.kill(r.name)
		}
	}},
	{4, 0, func(s *simulation, _ context.Context) {
		if s.leader != nil {
			s.leader.transport.set(anymesh.Pick(s.random, killAfter, freezeBefore))
		}
	}},
	{3, 0, func(s *simulation, _ context.Context) {
		if s.leader != nil {
			s.stopped(s.leader.name)
		}
	}},
	{3, 6, (*simulation).stopBeforeGrant},
	{3, 6, func(s *simulation, _ context.Context) {
		if s.leader != nil {
			s.handOver()
		}
	}},
	{2, 0, func(s *simulation, _ context.Context) { // the whole control plane
		for _, name := range s.names() {
			s.kill(name)
		}
		s.replacements = time.Now().Add(time.Duration(1+s.random.IntN(6)) * time.Minute)
	}},
	{2, 0, func(s *simulation, _ context.Context) {
		d := time.Duration(s.random.IntN(60)) * time.Second
		s.Note("the API server is away for %s", d)
		s.disturb()
		s.mu.Lock()
		s.away = time.Now().Add(d)
		s.mu.Unlock()
		s.breakWatches()
	}},
	{3, 0, func(s *simulation, _ context.Context) {
		s.Note("all watches break")
		if s.random.IntN(2) == 0 {
			s.api.compact()
		}
		s.breakWatches()
	}},
	{3, 0, func(s *simulation, ctx context.Context) {
		if p := s.anyPod(); p != nil && p.agent != nil {
			s.Note("the agent of %s dies", p.name)
			s.disturb()
			p.stopAgent()
			s.wait(ctx, time.Duration(s.random.Int64N(int64(anymesh.Pick(s.random, time.Second, 20*time.Second)))))
			p.agentAgain(ctx)
		}
	}},
	{3, 0, func(s *simulation, ctx context.Context) {
		if p := s.anyPod(); p != nil {
			s.restartSidecar(ctx, p)
		}
	}},
	{3, 0, func(s *simulation, ctx context.Context) {
		all := s.live(anymesh.Pick(s.random, s.workloads...))
		all = slices.DeleteFunc(all, func(p *pod) bool { return !s.mayEnd(p) })
		s.stopAgents(ctx, all, anymesh.Pick(s.random, 30*time.Second, 2*time.Minute))
	}},
	{3, 0, func(s *simulation, _ context.Context) {
		if p := s.anyPod(); p != nil {
			s.Note("the connections of %s break", p.name)
			s.disturb()
			s.network.Reset(p.host)
		}
	}},
	{3, 0, func(s *simulation, _ context.Context) { s.restartKubelet() }},
	{3, 0, func(s *simulation, _ context.Context) { s.rollout() }},
	{2, 0, func(s *simulation, _ context.Context) {
		if !s.apiAway() {
			s.setBudget(anymesh.Pick(s.random, s.workloads...), s.random.IntN(4)-1)
		}
	}},
	{3, 0, func(s *simulation, _ context.Context) {
		if p := s.anyPod(); p != nil {
			s.deletePod(p)
		}
	}},
}

// operate makes one random operation.
func (s *simulation) operate(ctx context.Context) {
	i := anymesh.Weighted(s.random, len(operations), func(i int) int {
		if s.variant == whole {
			return operations[i].weight
		}
		return operations[i].leaders
	})
	operations[i].do(s, ctx)
}

func (s *simulation) breakWatches() {
	for _, r := range s.replicas {
		r.transport.breakWatches()
	}
}

// live returns the pods of a workload that are not deleted.
func (s *simulation) live(w *workload) []*pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.pods), func(p *pod) bool { return p.gone || !p.deleted.IsZero() })
}

// anyPod returns a random pod, or nil.
func (s *simulation) anyPod() *pod {
	all := s.live(anymesh.Pick(s.random, s.workloads...))
	if len(all) == 0 {
		return nil
	}
	return anymesh.Pick(s.random, all...)
}

// fail makes containers of this many pods of a workload fail.
func (s *simulation) fail(pods int) {
	all := s.live(anymesh.Pick(s.random, s.workloads...))
	s.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	unready, heals := s.random.IntN(3) == 0, anymesh.Pick(s.random, 1, 1, 1, 1, 2)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range all[:min(pods, len(all))] {
		for _, c := range p.containers {
			if c.broken == nil && s.random.IntN(4) > 0 {
				c.broken = &fault{unready: unready, heals: heals}
				s.Note("%s of %s fails, its readiness too: %v, and needs %d restarts", c.name(), p.name, unready, heals)
			}
		}
		p.update()
	}
}

// heal makes a container pass without a restart.
func (s *simulation) heal() {
	if p := s.anyPod(); p != nil {
		s.setFault(p, nil)
	}
}

// agentAgain starts a new process for an agent that has died, unless the pod was deleted.
func (p *pod) agentAgain(ctx context.Context) {
	p.sim.mu.Lock()
	gone := p.gone
	p.sim.mu.Unlock()
	if !gone {
		p.startAgent(ctx)
	}
}

// restartSidecar makes the agent lose all its state.
func (s *simulation) restartSidecar(ctx context.Context, p *pod) {
	if !s.mayEnd(p) {
		return
	}
	s.endSidecar(p)
	s.wait(ctx, time.Duration(s.random.Int64N(int64(time.Minute))))
	s.beginSidecar(ctx, p)
}

// mayEnd reports whether the end of a pod's sidecar, which is one more failure, stays below the
// kubelet's threshold.
func (s *simulation) mayEnd(p *pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range p.containers {
		if c.worker.last == failure && c.worker.run+1 >= int(s.kubelet(c.probe).FailureThreshold) {
			return false
		}
	}
	return p.agent != nil
}

func (s *simulation) endSidecar(p *pod) {
	s.Note("the sidecar of %s ends", p.name)
	s.disturb()
	s.mu.Lock()
	p.sidecarDown, p.stopped = true, false
	p.sidecars++
	s.mu.Unlock()
	p.stopAgent()
	p.keep(nil)
}

func (s *simulation) beginSidecar(ctx context.Context, p *pod) {
	s.Note("the sidecar of %s is back", p.name)
	p.agentAgain(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	p.sidecarDown, p.forgot = false, time.Now()
}

// hungFor is how long the kubelet takes to end a silent sidecar: three timeouts of its liveness probe, and the grace
// period.
const hungFor = 3*30*time.Second + 10*time.Second

// stopAgents stops the sidecars of pods for a duration, as by SIGSTOP. The kubelet ends sidecars that hang for longer
// than hungFor.
func (s *simulation) stopAgents(ctx context.Context, pods []*pod, d time.Duration) {
	s.mu.Lock()
	for _, p := range pods {
		s.Note("the processes in the sidecar of %s stop for %s", p.name, d)
		p.stopped = true
	}
	s.mu.Unlock()
	s.disturb()
	s.wait(ctx, min(d, hungFor))
	if d >= hungFor {
		for _, p := range pods {
			s.endSidecar(p)
		}
		s.wait(ctx, time.Duration(s.random.Int64N(int64(time.Minute))))
		for _, p := range pods {
			s.beginSidecar(ctx, p)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range pods {
		p.stopped = false
	}
}

// stopBeforeGrant stops the leader before it writes the grant of a pod, and makes other pods fail
// meanwhile.
func (s *simulation) stopBeforeGrant(ctx context.Context) {
	all := s.live(anymesh.Pick(s.random, s.workloads...))
	if s.leader == nil || len(all) < 2 {
		return
	}
	s.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	s.leader.transport.set(freezeBefore)
	s.setFault(all[0], &fault{heals: 1})
	for waited := time.Duration(0); s.leader != nil && waited < 30*time.Second; waited += secondStep {
		s.wait(ctx, secondStep)
	}
	if s.random.IntN(2) == 0 {
		s.setFault(all[0], nil)
	}
	s.setFault(all[1], &fault{heals: 1})
	s.wait(ctx, time.Duration(s.random.Int64N(int64(time.Minute))))
	s.setFault(all[0], &fault{heals: 1})
}

// setFault makes all passing containers of a pod fail; nil makes them pass.
func (s *simulation) setFault(p *pod, f *fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Note("all of %s fails: %v", p.name, f != nil)
	for _, c := range p.containers {
		if f == nil || c.broken == nil {
			c.broken = nil
			if f != nil {
				c.broken = new(*f)
			}
		}
	}
	p.update()
}

// restartKubelet makes the kubelet of a node lose its counts.
func (s *simulation) restartKubelet() {
	p := s.anyPod()
	if p == nil {
		return
	}
	s.Note("the kubelet of %s restarts", p.node)
	for _, w := range s.workloads {
		for _, q := range s.live(w) {
			for _, c := range q.containers {
				if q.node == p.node {
					signal(c.again)
				}
			}
		}
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // the last value has not been received yet
	}
}

// rollout gives a workload another template, whose liveness probe may never pass.
func (s *simulation) rollout() {
	w := anymesh.Pick(s.random, s.workloads...)
	s.mu.Lock()
	defer s.mu.Unlock()
	w.template++
	if s.random.IntN(2) == 0 {
		w.bad[w.template] = &fault{unready: s.random.IntN(4) == 0}
	}
	s.Note("rollout of %s, template %d, bad %v", w.name, w.template, w.bad[w.template] != nil)
}
