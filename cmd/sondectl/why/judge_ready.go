package why

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/podcause"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/webhook"
)

// unhealthy is the reason of the kubelet's event about a failing probe.
const unhealthy = "Unhealthy"

// checking finds containers that run but are not ready, and the failing probe.
func checking(f *Facts, before []Finding) []Finding {
	var all []Finding
	for _, c := range f.running() {
		if c.status == nil || c.status.State.Running == nil || c.status.Ready && started(c) {
			continue
		}
		kind := mesh.ProbeReadiness
		if !started(c) {
			kind = mesh.ProbeStartup
		}
		if c.Name == mesh.ContainerSidecar && f.injected() {
			// otherwise the stopped container is the reason
			if !slices.ContainsFunc(before, func(o Finding) bool { return o.Keeps == FromReady }) {
				all = append(all, sidecarNotReady(f, c, kind))
			}
			continue
		}
		all = append(all, probeFails(f, c, kind))
	}
	return all
}

// started reports whether a container's startup probe has passed.
func started(c container) bool {
	return c.StartupProbe == nil || c.status.Started != nil && *c.status.Started
}

// probeFails is the finding for a failing probe of a user's container.
func probeFails(f *Facts, c container, kind mesh.ProbeType) Finding {
	since := c.status.State.Running.StartedAt.Time
	ready := f.condition(corev1.ContainersReady)
	if ready != nil && ready.Status == corev1.ConditionFalse && ready.LastTransitionTime.After(since) &&
		kind == mesh.ProbeReadiness {
		since = ready.LastTransitionTime.Time
	}
	r := Finding{Cause: "ReadinessProbeFails", Keeps: FromReady, Since: at(since)}
	if kind == mesh.ProbeStartup {
		r.Cause = "StartupProbeFails"
	}
	what := fmt.Sprintf("the %s probe of %s%s", kind, c.title(), f.written(c, kind))
	ours, kubelet := f.failures(c, kind)
	r.Text = what + " has not passed yet"
	if e := latest(c.status.State.Running.StartedAt.Time, ours, kubelet); e != nil {
		reason, _ := podcause.FailureReason(string(kind), e.Note)
		r.Text = what + " fails: " + sentence(reason)
	}
	if ready != nil && kind == mesh.ProbeReadiness {
		r.Evidence = []Evidence{ofCondition(ready)}
	}
	if p := f.verdict(c, kind); p != nil && p.Fails() {
		r.Text = what + " " + p.Clause()
		r.Evidence = append(r.Evidence, Evidence{Of: "agent, " + p.Title(), Says: clauses(p.Verdict, p.Reason), At: p.Since})
	}
	r.Evidence = withEvents(r.Evidence, ours, kubelet)
	return r
}

// failures returns the newest events about failures of a probe: the control plane's with the reason, and the kubelet's,
// which for probes of the agent only has a status.
func (f *Facts) failures(c container, kind mesh.ProbeType) (ours, kubelet *Event) {
	of := func(reason string) *Event {
		return f.eventThat(func(e *Event) bool {
			_, fails := podcause.FailureReason(string(kind), e.Note)
			return fails && e.Reason == reason && e.Part == c.Name
		})
	}
	return of(podcause.ProbeFailed), of(unhealthy)
}

// latest returns the first non-nil event since a time, or else the first non-nil one: the time of an event series may
// be earlier than its last event.
func latest(since time.Time, all ...*Event) *Event {
	var first *Event
	for _, e := range all {
		switch {
		case e == nil:
		case !e.At.Before(since):
			return e
		case first == nil:
			first = e
		}
	}
	return first
}

// sidecarNotReady is the finding for a running sidecar that is not ready for an unknown reason.
func sidecarNotReady(f *Facts, c container, kind mesh.ProbeType) Finding {
	r := Finding{
		Cause: "SidecarNotReady", Keeps: FromReady, Text: "container " + c.Name + " is not ready yet", Do: logsOf(f, c.Name),
		Since: at(c.status.State.Running.StartedAt.Time),
	}
	ours, kubelet := f.failures(c, kind)
	if e := latest(*r.Since, ours, kubelet); e != nil {
		r.Text = "container " + c.Name + " is not ready: " + sentence(e.Note)
	}
	r.Evidence = withEvents(nil, ours, kubelet)
	notRedirected(f, &r, kind, kubelet)
	return r
}

// notRedirected changes the finding about a sidecar that waits for the CNI plugin: without its rules, nothing listens
// at the port of the startup probe.
func notRedirected(f *Facts, r *Finding, kind mesh.ProbeType, kubelet *Event) {
	text, cni := podspec.RedirectionText(&f.Pod.Spec)
	if !cni || kind != mesh.ProbeStartup || kubelet == nil || !strings.Contains(kubelet.Note, "connection refused") {
		return
	}
	node := f.Pod.Spec.NodeName
	r.Cause = "NotRedirected"
	r.Text = fmt.Sprintf("the CNI plugin of node %s has not redirected its connections to its sidecar yet, and its other containers wait", node)
	r.Do = fmt.Sprintf("See condition %s in kubectl describe node %s, and the log of sonde-cni on that node", mesh.ConditionCNIReady, node)
	r.Evidence = append(r.Evidence, Evidence{
		Of: "spec.initContainers{" + mesh.ContainerSidecar + "}.env{" + mesh.EnvRedirection + "}", Says: text,
	})
}

// written returns the user's original probe in parentheses, "" if unknown.
func (f *Facts) written(c container, kind mesh.ProbeType) string {
	decisions, _, err := webhook.Explain(f.Pod, webhook.Options{})
	if err != nil {
		return "" // the webhook would reject the pod now, but the kubelet runs it
	}
	for i := range decisions {
		if d := &decisions[i]; d.Container == c.Name && d.Type == kind {
			return " (" + d.Written + ")"
		}
	}
	return ""
}

// gates finds reasons other than containers why the pod is not Ready: readiness gates, and an unreachable node.
func gates(f *Facts, _ []Finding) []Finding {
	var all []Finding
	for _, gate := range f.Pod.Spec.ReadinessGates {
		c := f.condition(gate.ConditionType)
		if c != nil && c.Status == corev1.ConditionTrue {
			continue
		}
		r := Finding{
			Cause: "ReadinessGate", Keeps: FromReady,
			Text: fmt.Sprintf("its readiness gate %s has no condition yet", gate.ConditionType),
		}
		if c != nil {
			r.Text = fmt.Sprintf("its readiness gate %s is %s", gate.ConditionType, clauses(string(c.Status), c.Reason, c.Message))
			r.Since, r.Evidence = at(c.LastTransitionTime.Time), []Evidence{ofCondition(c)}
		}
		all = append(all, r)
	}
	ready, containers := f.condition(corev1.PodReady), f.condition(corev1.ContainersReady)
	if len(all) == 0 && ready != nil && containers != nil && ready.Status == corev1.ConditionFalse &&
		containers.Status == corev1.ConditionTrue {
		all = append(all, Finding{
			Cause: "NodeNotHeard", Keeps: FromReady, Since: at(ready.LastTransitionTime.Time),
			Text:     "its containers were ready, but the API server has lost contact with node " + f.Pod.Spec.NodeName,
			Evidence: withEvents([]Evidence{ofCondition(ready), ofCondition(containers)}, f.event("NodeNotReady", "")),
		})
	}
	return all
}

// restarting finds out whether the kubelet restarts all containers at once, which explains all other findings.
func restarting(f *Facts, _ []Finding) []Finding {
	c := podspec.RestartingAll(f.Pod)
	if c == nil {
		return nil
	}
	r := Finding{
		Cause: "AllContainersRestarting", Keeps: FromReady, Text: mesh.RestartingReason, Since: at(c.LastTransitionTime.Time),
		Evidence: []Evidence{ofCondition(c)},
	}
	if f.ready() {
		r.Keeps = FromTraffic
	}
	return []Finding{r}
}

// restarts finds containers that have ended and restarted, and why.
func restarts(f *Facts, before []Finding) []Finding {
	var all []Finding
	for _, c := range f.running() {
		if c.status == nil || f.endedByDeletion(c.status) || c.ours() && found(before, sidecarFailed) {
			continue
		}
		if end := lastEnd(c.status); end != nil && (c.status.RestartCount > 0 || c.status.State.Terminated != nil) {
			all = append(all, restartOf(f, c, end))
		}
	}
	return all
}

// restartOf is the finding for a container that has ended.
func restartOf(f *Facts, c container, end *corev1.ContainerStateTerminated) Finding {
	r := Finding{Cause: "Restarted", Since: at(end.FinishedAt.Time)}
	times := printer.Plural(int(c.status.RestartCount), "time")
	text := fmt.Sprintf("%s has restarted %s, last at %s", c.title(), times, clock(end.FinishedAt.Time))
	switch {
	case c.status.State.Waiting != nil:
		r.Cause, r.Keeps = "CrashLoop", FromReady
		text = fmt.Sprintf("%s does not run, and has restarted %s", c.title(), times)
	case c.status.State.Terminated != nil:
		r.Cause, r.Keeps = "ContainerEnded", FromReady
		text = c.title() + " has ended, " + f.again(c, end)
	}
	how, evidence := f.endedBy(c, end)
	r.Text = text + ": " + how
	r.Evidence = append([]Evidence{ofStatus(c, end.FinishedAt.Time, endText(c.Container, end))}, evidence...)
	r.Evidence = withEvents(r.Evidence, f.event("BackOff", c.Name))
	switch r.Cause {
	case "CrashLoop":
		r.Do = logsOf(f, c.Name+" --previous")
	case "ContainerEnded":
		r.Do = logsOf(f, c.Name)
		if f.restartsAfter(c, end) && f.Now.Sub(end.FinishedAt.Time) > startSlack {
			r.Do += ". Delete the pod if this does not change: some kubelets do not restart containers beside a native sidecar, " +
				"see docs/kubernetes.md; its node is " + f.Pod.Spec.NodeName
		}
	}
	return r
}

// startSlack is how long the kubelet may take to restart a container, or to report a back-off.
const startSlack = time.Minute

// again describes whether a container that has ended restarts.
func (f *Facts) again(c container, end *corev1.ContainerStateTerminated) string {
	switch {
	case !f.restartsAfter(c, end):
		return "and does not run again"
	case f.Now.Sub(end.FinishedAt.Time) > startSlack:
		return "and the kubelet has not started it again"
	}
	return "and the kubelet starts it again"
}

// restartsAfter reports whether a container restarts after this exit, by its own restart policy or the pod's.
func (f *Facts) restartsAfter(c container, end *corev1.ContainerStateTerminated) bool {
	policy := f.Pod.Spec.RestartPolicy
	if c.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*c.RestartPolicy)
	}
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return end.ExitCode != 0
	}
	return true
}

// killSlack is how long after its grace period a container killed by the kubelet may end.
const killSlack = time.Minute

// endedBy says why a container has ended: memory use, a probe, or by itself.
func (f *Facts) endedBy(c container, end *corev1.ContainerStateTerminated) (string, []Evidence) {
	if end.Reason == "OOMKilled" {
		return endText(c.Container, end), nil
	}
	grace := 30 * time.Second
	if s := f.Pod.Spec.TerminationGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	for _, kind := range []mesh.ProbeType{mesh.ProbeLiveness, mesh.ProbeStartup} {
		kill := f.eventThat(func(e *Event) bool {
			return e.Reason == "Killing" && e.Part == c.Name && strings.Contains(e.Note, "failed "+string(kind)+" probe")
		})
		if kill == nil || kill.At.After(end.FinishedAt.Add(killSlack)) ||
			kill.At.Before(end.FinishedAt.Add(-grace-killSlack)) {
			continue
		}
		text := fmt.Sprintf("its %s probe%s failed", kind, f.written(c, kind))
		ours, kubelet := f.failures(c, kind)
		why := ours
		if why == nil {
			why = kubelet
		}
		if why != nil {
			reason, _ := podcause.FailureReason(string(kind), why.Note)
			text += ": " + sentence(reason)
		}
		evidence := withEvents(nil, kill, ours, kubelet)
		if grant := f.event(podcause.RestartGranted, c.Name); grant != nil && kind == mesh.ProbeLiveness {
			text += "; the control plane has granted the restart"
			evidence = withEvents(evidence, grant)
		}
		return text, evidence
	}
	return "it ended by itself with " + endText(c.Container, end), nil
}
