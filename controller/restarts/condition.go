package restarts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

const (
	// conditionEvery is how often the condition of a pod is written at most.
	conditionEvery = 10 * time.Second
	// conditionGrace is how long a new leader leaves the condition of a pod whose agent has said nothing yet.
	conditionGrace = time.Minute
	reasonNotHeld  = "NotHeld"
)

// condition is what is compared of mesh.ConditionLivenessHeld of a pod: not its figures, which would have it written each time.
type condition struct {
	held bool
	// reason and containers if it is held.
	reason, containers string
}

// conditionOf returns what a pod says, the zero condition if it says nothing. The containers are the start of the message.
func conditionOf(p *corev1.Pod) condition {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == mesh.ConditionLivenessHeld })
	if i < 0 || p.Status.Conditions[i].Status != corev1.ConditionTrue {
		return condition{}
	}
	c := p.Status.Conditions[i]
	containers, _, _ := strings.Cut(c.Message, ": ")
	return condition{true, intern(c.Reason), intern(containers)}
}

// holding is what is held of one pod.
type holding struct {
	containers []string
	// first is the decision on the container that has asked for the longest time.
	first *restartbudget.Decision
}

func (h *holding) condition() condition {
	return condition{true, camelCase(h.first.Reason), strings.Join(h.containers, ", ")}
}

func (h *holding) message() string {
	return fmt.Sprintf("%s: %s; failing since %s", strings.Join(h.containers, ", "), h.first, h.first.Request.Since.UTC().Format(time.RFC3339))
}

// holdings returns what decisions, oldest request first, hold, by the UID of the pod.
func holdings(decisions []restartbudget.Decision) map[string]*holding {
	all := map[string]*holding{}
	for i := range decisions {
		d := &decisions[i]
		if !holds(d) {
			continue
		}
		h := all[d.Request.PodUID]
		if h == nil {
			h = &holding{first: d}
			all[d.Request.PodUID] = h
		}
		h.containers = append(h.containers, d.Request.Name)
	}
	for _, h := range all {
		slices.Sort(h.containers)
		h.containers = slices.Compact(h.containers)
	}
	return all
}

// holds reports whether a failure is kept from the kubelet.
func holds(d *restartbudget.Decision) bool { return d.Verdict == restartbudget.Held && !d.DryRun }

// tellConditions has the conditions of pods written that say something else than what was decided.
func (l *leader) tellConditions(
	now time.Time, decisions []restartbudget.Decision, liveness map[watch.Key]agentv1.ReportedLiveness,
) {
	if l.noConditions {
		return
	}
	held := holdings(decisions)
	there := map[watch.Key]bool{}
	for _, key := range l.cluster.pods.Keys() {
		p := l.cluster.pods.Get(key)
		if p == nil || p.ended {
			continue
		}
		there[key] = true
		h := held[p.uid]
		if h == nil && p.condition.held && p.guarded() && now.Sub(l.began) < conditionGrace {
			if _, known := liveness[key]; !known {
				continue // an earlier leader has written it, and it may still hold
			}
		}
		l.tellCondition(now, key, p, h)
	}
	for key := range l.conditions {
		if !there[key] {
			delete(l.conditions, key)
		}
	}
}

// tellCondition is for one pod; h is nil if nothing of it is held.
func (l *leader) tellCondition(now time.Time, key watch.Key, p *pod, h *holding) {
	id, c := writeID{classCondition, key}, corev1.PodCondition{Type: mesh.ConditionLivenessHeld, Status: corev1.ConditionFalse, Reason: reasonNotHeld}
	var want condition
	if h != nil {
		want = h.condition()
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, want.reason, h.message()
	}
	if want == p.condition {
		l.writer.withdraw(id, true) // it may have been wanted otherwise since
		return
	}
	if now.Sub(l.conditions[key]) < conditionEvery && !l.writer.waits(id) || l.writer.flies(id) {
		return
	}
	if want.held != p.condition.held {
		c.LastTransitionTime = metav1.NewTime(now)
	}
	l.patchCondition(key, p.uid, c)
}

// camelCase returns the reason as conditions and events have it: in_progress is InProgress.
func camelCase(reason restartbudget.Reason) string {
	var b strings.Builder
	for word := range strings.SplitSeq(string(reason), "_") {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}
