package why

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// stages run in the order of a pod's life. Each stage gets the findings of the previous ones.
var stages = []func(*Facts, []Finding) []Finding{
	admission, scheduling, restarting, starting, joining, listening, incoming, calling, checking, gates, restarts,
	endpoints, drains, held, frozen,
}

// Judge draws conclusions from the facts, without side effects and requests.
func Judge(f *Facts) *Report {
	r := &Report{Namespace: f.Pod.Namespace, Pod: f.Pod.Name, Findings: []Finding{}, NotAsked: f.NotAsked, now: f.Now}
	if podspec.Ended(f.Pod) {
		r.complete(f)
		return r
	}
	for _, judge := range stages {
		r.Findings = append(r.Findings, judge(f, r.Findings)...)
	}
	if !f.ready() && f.Pod.DeletionTimestamp == nil &&
		!slices.ContainsFunc(r.Findings, func(o Finding) bool { return o.Keeps == FromReady }) {
		r.Findings = append(r.Findings, notReady(f))
	}
	r.Probes, r.ProbesLeftOut = f.probes()
	f.serveNevertheless(r.Findings)
	r.State = f.state(r.Findings)
	r.summarise(f)
	return r
}

// ready reports whether the pod is Ready.
func (f *Facts) ready() bool {
	return podspec.Has(f.Pod, corev1.PodReady, corev1.ConditionTrue)
}

// notReady is the finding for a pod that is not Ready for an unknown reason.
func notReady(f *Facts) Finding {
	found := Finding{Cause: "NotReady", Keeps: FromReady, Text: "the kubelet has not reported its status yet"}
	if c := f.condition(corev1.PodReady); c != nil {
		found.Text, found.Since = "the reason is unknown: its containers may still start", at(c.LastTransitionTime.Time)
		found.Evidence = []Evidence{ofCondition(c)}
	}
	return found
}

// state returns the state of a pod that has not ended.
func (f *Facts) state(all []Finding) State {
	has := func(k Keeps) bool { return slices.ContainsFunc(all, func(o Finding) bool { return o.Keeps == k }) }
	switch {
	case f.Pod.DeletionTimestamp != nil:
		return Terminating
	case !f.ready():
		return NotReady
	case has(FromMesh):
		return NotInMesh
	case has(FromReady), has(FromTraffic):
		return NoTraffic
	case has(FromNew), has(FromPreference):
		return Draining
	}
	return Ready
}

// keeps reports whether a finding keeps the pod from something.
func keeps(all []Finding) bool {
	return slices.ContainsFunc(all, func(o Finding) bool { return o.Keeps != "" })
}

// first returns the first finding that keeps the pod from something, -1 without one.
func (r *Report) first() int {
	return slices.IndexFunc(r.Findings, func(o Finding) bool { return o.Keeps != "" })
}

// summarise writes the paragraph.
func (r *Report) summarise(f *Facts) {
	var b strings.Builder
	i := r.first()
	if i < 0 {
		r.well(f)
		return
	}
	found := &r.Findings[i]
	heads := map[Keeps]string{
		FromMesh: "is not in the mesh", FromReady: "is not Ready", FromTraffic: "gets no traffic",
		FromNew: "gets no new traffic", FromPreference: "drains",
	}
	fmt.Fprintf(&b, "%s %s%s: %s.", f.Object(), heads[found.Keeps], r.since(found.Since), found.Text)
	if r.State == NotReady && found.Keeps != FromReady {
		b.WriteString(" It is not Ready, either.")
	}
	if found.Do != "" {
		b.WriteString(" " + found.Do + ".")
	}
	switch more := len(r.Findings) - 1; {
	case more == 1:
		b.WriteString(" One more finding is below.")
	case more > 1:
		fmt.Fprintf(&b, " %d more findings are below.", more)
	}
	r.Summary = b.String()
}

// well writes the summary for a pod without problems.
func (r *Report) well(f *Facts) {
	var since *time.Time
	if c := f.condition(corev1.PodReady); c != nil {
		since = at(c.LastTransitionTime.Time)
	}
	traffic := "and its Services could not be read"
	if !f.Unread {
		var names []string
		for _, s := range f.selecting() {
			names = append(names, s.Name)
		}
		traffic = "and gets traffic of Service " + mesh.Few(names)
	}
	var notes []Finding
	for _, o := range r.Findings {
		if o.Cause == noService {
			traffic = "and " + o.Text
		} else {
			notes = append(notes, o)
		}
	}
	r.Summary = fmt.Sprintf("%s is well: it is in mesh %s, Ready%s, %s.", f.Object(), f.Pod.Labels[mesh.LabelMesh], r.since(since), traffic)
	switch n := len(notes); {
	case n == 1:
		r.Summary += " Of note: " + notes[0].Text + "."
	case n > 1:
		r.Summary += fmt.Sprintf(" %d notes are below.", n)
	}
}

// complete writes the summary for a pod that has ended.
func (r *Report) complete(f *Facts) {
	r.State = Completed
	why := []string{}
	var last time.Time
	for _, c := range f.containers() {
		if c.status == nil || c.status.State.Terminated == nil {
			continue
		}
		end := c.status.State.Terminated
		if end.FinishedAt.After(last) {
			last = end.FinishedAt.Time
		}
		if end.ExitCode != 0 {
			r.Findings = append(r.Findings, Finding{
				Cause: "ContainerFailed", Text: fmt.Sprintf("%s has ended with %s", c.title(), endText(c.Container, end)), Since: at(end.FinishedAt.Time),
				Evidence: []Evidence{ofStatus(c, end.FinishedAt.Time, endText(c.Container, end))},
			})
		}
	}
	head := "has completed"
	switch {
	case f.Pod.Status.Phase == corev1.PodFailed:
		r.State, head = Failed, "has failed"
		why = append(why, f.Pod.Status.Reason, sentence(f.Pod.Status.Message))
	case len(r.Findings) == 0:
		why = append(why, "all containers have ended with exit code 0")
	}
	if len(r.Findings) > 0 {
		why = append(why, r.Findings[0].Text)
	}
	r.Summary = clauses(append([]string{f.Object() + " " + head + r.since(at(last))}, why...)...) +
		". It no longer gets traffic."
}

// clauses joins non-empty clauses with colons.
func clauses(all ...string) string {
	return strings.Join(slices.DeleteFunc(all, func(c string) bool { return c == "" }), ": ")
}

// sentence removes the final full stop of a text.
func sentence(text string) string { return strings.TrimSuffix(strings.TrimSpace(text), ".") }

func ofCondition(c *corev1.PodCondition) Evidence {
	return Evidence{Of: "condition " + string(c.Type), Says: clauses(string(c.Status), c.Reason, c.Message), At: at(c.LastTransitionTime.Time)}
}

func ofEvent(e *Event) Evidence {
	of := "event " + e.Reason
	if e.Part != "" {
		of += " of container " + e.Part
	}
	return Evidence{Of: of, Says: e.Note, At: at(e.At)}
}

func ofStatus(c container, when time.Time, says string) Evidence {
	return Evidence{Of: "status of " + c.title(), Says: says, At: at(when)}
}

// withEvents adds existing events to the evidence.
func withEvents(known []Evidence, all ...*Event) []Evidence {
	for _, e := range all {
		if e != nil {
			known = append(known, ofEvent(e))
		}
	}
	return known
}

// found reports whether a finding has one of these causes.
func found(before []Finding, causes ...Cause) bool {
	return slices.ContainsFunc(before, func(o Finding) bool { return slices.Contains(causes, o.Cause) })
}
