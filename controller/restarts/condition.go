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
	// conditionEvery is the minimum time between two writes of a pod's condition.
	conditionEvery = 10 * time.Second
	// conditionGrace is how long a new leader keeps the condition of a pod whose agent has not reported yet.
	conditionGrace = time.Minute
	reasonNotHeld  = "NotHeld"
)

// condition is the part of mesh.ConditionLivenessHeld that is compared. It excludes changing figures, which would cause
// constant writes.
type condition struct {
	held bool
	// reason, containers and hold are set if held.
	reason, containers string
	hold               mesh.LivenessHold
}

// heldAs precedes hold at the end of a message.
const heldAs = "; held as "

// conditionOf returns a pod's condition, zero without one. The message begins with the containers and ends with hold.
func conditionOf(p *corev1.Pod) condition {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == mesh.ConditionLivenessHeld
	})
	if i < 0 || p.Status.Conditions[i].Status != corev1.ConditionTrue {
		return condition{}
	}
	c := p.Status.Conditions[i]
	containers, _, _ := strings.Cut(c.Message, ": ")
	hold := ""
	if i := strings.LastIndex(c.Message, heldAs); i >= 0 {
		hold = c.Message[i+len(heldAs):]
	}
	return condition{true, intern(c.Reason), intern(containers), mesh.LivenessHold(intern(hold))}
}

// holding describes the held failures of one pod: their containers.
type holding struct {
	containers []string
	// first is the decision on the container with the oldest request.
	first *restartbudget.Decision
}

func (h *holding) condition(hold mesh.LivenessHold) condition {
	return condition{true, camelCase(h.first.Reason), strings.Join(h.containers, ", "), hold}
}

func (h *holding) message(hold mesh.LivenessHold) string {
	return fmt.Sprintf("%s: %s; failing since %s%s%s", strings.Join(h.containers, ", "), h.first,
		h.first.Request.Since.UTC().Format(time.RFC3339), heldAs, hold)
}

// holdings returns the held failures by pod UID. decisions are sorted, oldest request first.
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

// holds reports whether a failure is not passed to the kubelet.
func holds(d *restartbudget.Decision) bool { return d.Verdict == restartbudget.Held && !d.DryRun }

// tellConditions writes the conditions of pods that differ from the decisions.
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
				continue // an earlier leader wrote it, and it may still be true
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

// tellCondition handles one pod; h is nil if nothing is held.
func (l *leader) tellCondition(now time.Time, key watch.Key, p *pod, h *holding) {
	id, c := writeID{classCondition, key}, corev1.PodCondition{Type: mesh.ConditionLivenessHeld,
		Status: corev1.ConditionFalse, Reason: reasonNotHeld}
	var want condition
	if h != nil {
		want = h.condition(l.Hold())
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, want.reason, h.message(l.Hold())
	}
	if want == p.condition {
		l.writer.withdraw(id, true) // an outdated write may still wait
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

// camelCase returns the form of a reason in conditions and events: in_progress is InProgress.
func camelCase(reason restartbudget.Reason) string {
	var b strings.Builder
	for word := range strings.SplitSeq(string(reason), "_") {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}
