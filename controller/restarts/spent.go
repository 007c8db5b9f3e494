package restarts

import (
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// instance is a running or ended instance of a container.
type instance struct {
	container string
	id        uint64 // a hash of its ID, 0 before it has one
	ended     bool   // it will not be restarted
	started   bool   // its startup probe has passed, if it has one
	last      ending // end of the previous instance
}

// instancesOf returns the instances of the guarded containers of a pod.
func instancesOf(p *corev1.Pod, guarded []string, statuses map[string]*corev1.ContainerStatus) []instance {
	podEnded := podspec.Ended(p)
	all := make([]instance, 0, len(guarded))
	for _, name := range guarded {
		i := instance{container: intern(name), ended: podEnded}
		if s := statuses[name]; s != nil {
			if s.ContainerID != "" {
				h := fnv.New64a()
				_, _ = h.Write([]byte(s.ContainerID)) // never fails
				i.id = max(h.Sum64(), 1)
			}
			i.started, i.last = s.Started != nil && *s.Started, endingOf(s.LastTerminationState.Terminated)
			i.ended = podEnded || s.State.Terminated != nil && !startsAgain(p, name, s.State.Terminated.ExitCode)
		}
		all = append(all, i)
	}
	return all
}

// startsAgain reports whether the kubelet restarts an ended container. It returns true for containers with rules for
// exit codes, which it does not evaluate.
func startsAgain(p *corev1.Pod, name string, exitCode int32) bool {
	policy := p.Spec.RestartPolicy
	if c := podspec.Container(&p.Spec, name); c != nil && c.RestartPolicy != nil {
		if len(c.RestartPolicyRules) > 0 {
			return true
		}
		policy = corev1.RestartPolicy(*c.RestartPolicy)
	}
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return exitCode != 0
	}
	return true
}

// markSpent finds restarts that do not increase the restart count, because the container has another ID, as after its
// pod's status was lost, or has ended for good.
func (l *leader) markSpent(now time.Time) {
	seen := map[restartbudget.GrantID]uint64{}
	for _, key := range l.grants.Keys() {
		g := l.grants.Get(key)
		if g == nil || g.Outcome != restartbudget.Open {
			continue
		}
		p := l.cluster.pods.Get(g.pod)
		if p == nil || p.uid != g.ID.PodUID {
			continue
		}
		for _, i := range p.instances {
			if i.container != g.ID.Name {
				continue
			}
			before := l.instances[g.ID]
			seen[g.ID] = before
			if before == 0 {
				seen[g.ID] = i.id
			}
			if !i.ended && (before == 0 || i.id == 0 || i.id == before) {
				continue
			}
			if spent, is := l.state.Restarted(now, g.ID); is {
				if p.ended { // an ended pod gets no further decisions
					spent.Ended = now
				}
				l.patchStatus(key, statusOf(spent))
			}
		}
	}
	l.instances = seen
}
