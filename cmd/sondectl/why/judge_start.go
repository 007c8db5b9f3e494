package why

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/podcause"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/webhook"
)

// admission checks that the pod has a sidecar, and reports probes and settings that the webhook did not change.
func admission(f *Facts, _ []Finding) []Finding {
	if f.injected() {
		warnings := f.Pod.Annotations[mesh.AnnotationInjectionWarnings]
		if warnings == "" {
			return nil
		}
		return []Finding{{
			Cause:    podcause.InjectionWarning,
			Text:     "injection left parts unchanged: " + strings.ReplaceAll(warnings, "\n", "; "),
			Evidence: []Evidence{{Of: "annotation " + mesh.AnnotationInjectionWarnings, Says: strings.ReplaceAll(warnings, "\n", "; "), At: at(f.Pod.CreationTimestamp.Time)}},
		}}
	}
	r := Finding{Cause: podcause.NotInjected, Keeps: FromMesh, Evidence: f.askers()}
	absence := webhook.WhyNot(f.webhookNamespace(), f.Pod, f.Injection)
	r.Text = absence.Why
	switch {
	case podspec.Container(&f.Pod.Spec, mesh.ContainerSidecar) != nil:
		r.Text = fmt.Sprintf("its container %s belongs to another mesh: it has no volume %s", mesh.ContainerSidecar, mesh.VolumeIdentity)
	case f.NoWebhook:
		r.Text = "it has no sidecar: no webhook of Sonde is installed in this cluster"
	case absence.Missing:
		r.Do = "Pods are injected when they are created: " + f.makeAgain()
	case f.templateAsks():
		r.Text = fmt.Sprintf("it has no sidecar, since it is older than the template of %s, which asks for one", f.Owner)
	}
	r.Since = at(f.Pod.CreationTimestamp.Time)
	r.Evidence = withEvents(r.Evidence, f.event(podcause.NotInjected, ""), f.event(podcause.InjectionWarning, ""))
	return []Finding{r}
}

// makeAgain returns the advice to recreate the pod.
func (f *Facts) makeAgain() string {
	kind, name, owned := strings.Cut(f.Owner, " ")
	switch {
	case slices.Contains([]string{"Deployment", "StatefulSet", "DaemonSet"}, kind):
		return fmt.Sprintf("kubectl rollout restart %s/%s -n %s recreates it", strings.ToLower(kind), name, f.Pod.Namespace)
	case owned:
		return "delete it, so that " + f.Owner + " recreates it"
	}
	return "delete it, and create it again"
}

// templateAsks reports whether a pod of the owner would get a sidecar now.
func (f *Facts) templateAsks() bool {
	if f.Template == nil {
		return false
	}
	next := &corev1.Pod{ObjectMeta: f.Template.ObjectMeta, Spec: f.Template.Spec}
	s, err := webhook.Select(f.webhookNamespace(), next, f.Injection)
	return err == nil && s.Injected
}

// askers returns the labels and annotations that decide about injection, as evidence.
func (f *Facts) askers() []Evidence {
	all := []Evidence{{Of: "pod/" + f.Pod.Name, Says: "created without a sidecar", At: at(f.Pod.CreationTimestamp.Time)}}
	for _, key := range f.Injection.InjectionKeys() {
		if value, ok := f.Pod.Labels[key]; ok {
			all = append(all, Evidence{Of: "label of the pod", Says: key + "=" + value})
		}
		if value, ok := f.Pod.Annotations[key]; ok {
			all = append(all, Evidence{Of: "annotation of the pod", Says: key + "=" + value})
		}
		if f.Namespace == nil {
			continue
		}
		if value, ok := f.Namespace.Labels[key]; ok {
			all = append(all, Evidence{Of: "label of namespace " + f.Namespace.Name, Says: key + "=" + value, At: at(labelledAt(f.Namespace.ManagedFields, key))})
		}
	}
	return all
}

// labelledAt returns when the manager of a label last wrote to the object, the zero time if unknown.
func labelledAt(managed []metav1.ManagedFieldsEntry, key string) time.Time {
	for i := range managed {
		var written struct {
			Metadata struct {
				Labels map[string]json.RawMessage `json:"f:labels"`
			} `json:"f:metadata"`
		}
		if managed[i].FieldsV1 == nil || managed[i].Time == nil ||
			json.Unmarshal(managed[i].FieldsV1.GetRawBytes(), &written) != nil {
			continue
		}
		if _, ok := written.Metadata.Labels["f:"+key]; ok {
			return managed[i].Time.Time
		}
	}
	return time.Time{}
}

// sidecarFailed is the cause for a sidecar that does not run.
const sidecarFailed Cause = "SidecarFailed"

// scheduling checks that the pod has a node.
func scheduling(f *Facts, _ []Finding) []Finding {
	c := f.condition(corev1.PodScheduled)
	if f.Pod.Spec.NodeName != "" || c == nil || c.Status != corev1.ConditionFalse {
		return nil
	}
	return []Finding{{
		Cause: "Unschedulable", Keeps: FromReady, Text: "no node takes it: " + clauses(c.Reason, sentence(c.Message)), Since: at(c.LastTransitionTime.Time),
		Evidence: withEvents([]Evidence{ofCondition(c)}, f.event("FailedScheduling", "")),
	}}
}

// starting finds the first container that does not run, and why. Later ones may only wait for it.
func starting(f *Facts, _ []Finding) []Finding {
	for _, c := range f.containers() {
		if c.status == nil || f.endedByDeletion(c.status) {
			continue
		}
		if r, ok := startOf(f, c); ok {
			return []Finding{r}
		}
	}
	return stuck(f)
}

// startOf returns why a container does not run, false if it runs or has no known problem.
func startOf(f *Facts, c container) (Finding, bool) {
	r := Finding{Keeps: FromReady}
	if ready := f.condition(corev1.ContainersReady); ready != nil && ready.Status == corev1.ConditionFalse {
		r.Since = at(ready.LastTransitionTime.Time)
	}
	last, initial := lastEnd(c.status), c.before && !c.native()
	switch running := c.status.State.Running; {
	case initial && running != nil:
		r.Cause, r.Since = "InitRuns", at(running.StartedAt.Time)
		r.Text, r.Do = c.title()+" runs, and the containers after it wait until it has ended", logsOf(f, c.Name)
		r.Evidence = []Evidence{ofStatus(c, running.StartedAt.Time, "it runs")}
	case initial && !c.status.Ready && last != nil && last.ExitCode != 0:
		ended(f, &r, c, last)
		r.Cause, r.Text = "InitFailed", r.Text+", and the containers after it wait"
	case c.Name == mesh.ContainerSidecar && f.injected() && last != nil && running == nil:
		ended(f, &r, c, last)
		r.Cause = sidecarFailed
	case c.status.State.Waiting != nil:
		return r, unmade(f, &r, c, c.status.State.Waiting)
	default:
		return r, false
	}
	return r, true
}

// ended describes how a container that others wait for has ended.
func ended(f *Facts, r *Finding, c container, last *corev1.ContainerStateTerminated) {
	how := endText(c.Container, last)
	r.Text, r.Do, r.Since = fmt.Sprintf("%s has ended with %s", c.title(), how), logsOf(f, c.Name), at(last.FinishedAt.Time)
	r.Evidence = withEvents([]Evidence{ofStatus(c, last.FinishedAt.Time, how)}, f.event("BackOff", c.Name))
}

// unmade describes why the kubelet cannot start a container, false if the reason is not an error.
func unmade(f *Facts, r *Finding, c container, waiting *corev1.ContainerStateWaiting) bool {
	status := ofStatus(c, time.Time{}, clauses(waiting.Reason, waiting.Message))
	switch {
	case podspec.WaitsForImage(waiting.Reason):
		failed := f.eventThat(func(e *Event) bool {
			return e.Part == c.Name && e.Reason == "Failed" && strings.HasPrefix(e.Note, "Failed to pull")
		})
		why := waiting.Message
		if failed != nil { // the message of a back-off lacks the reason
			why = failed.Note
		}
		r.Cause, r.Text = "ImageNotPulled", fmt.Sprintf("the image of %s cannot be pulled: %s", c.title(), clauses(waiting.Reason, sentence(why)))
		r.Evidence = withEvents([]Evidence{status}, failed)
	case podspec.Unstartable(waiting.Reason):
		r.Cause, r.Text = "ContainerNotMade", fmt.Sprintf("%s cannot be started: %s", c.title(), clauses(waiting.Reason, sentence(waiting.Message)))
		r.Evidence = withEvents([]Evidence{status}, f.event("Failed", c.Name))
	default:
		return false
	}
	return true
}

// stuck returns the kubelet's event about a pod without started containers: its volumes or its sandbox.
func stuck(f *Facts) []Finding {
	if f.Pod.Spec.NodeName == "" || f.Pod.Status.Phase != corev1.PodPending || slices.ContainsFunc(f.containers(), func(c container) bool {
		return c.status != nil && (c.status.State.Running != nil || lastEnd(c.status) != nil)
	}) {
		return nil
	}
	e := f.eventThat(func(e *Event) bool {
		return strings.HasPrefix(e.Reason, "Failed") && e.Reason != "FailedScheduling"
	})
	if e == nil {
		return nil
	}
	return []Finding{{Cause: "NotStarted", Keeps: FromReady, Text: "no container has started: " + sentence(e.Note), Since: at(f.Pod.CreationTimestamp.Time), Evidence: []Evidence{ofEvent(e)}}}
}

// endedByDeletion reports whether a container has ended because the pod is being deleted.
func (f *Facts) endedByDeletion(s *corev1.ContainerStatus) bool {
	end := s.State.Terminated
	return f.Pod.DeletionTimestamp != nil && end != nil && !end.FinishedAt.Time.Before(f.deletedAt())
}

// deletedAt returns when the deletion of the pod was requested.
func (f *Facts) deletedAt() time.Time {
	grace := time.Duration(0)
	if s := f.Pod.DeletionGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	return f.Pod.DeletionTimestamp.Add(-grace)
}

// lastEnd returns the last terminated state of a container, nil without one.
func lastEnd(s *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if s.State.Terminated != nil {
		return s.State.Terminated
	}
	return s.LastTerminationState.Terminated
}

// endText describes how a container has ended.
func endText(c *corev1.Container, end *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("exit code %d", end.ExitCode)
	switch {
	case end.Reason == "OOMKilled":
		limit := "it has no limit of its own"
		if q, ok := c.Resources.Limits[corev1.ResourceMemory]; ok {
			limit = "its limit is " + q.String()
		}
		text += ", killed for its memory use: " + limit
	case end.Signal != 0:
		text += fmt.Sprintf(", signal %d", end.Signal)
	}
	if message := lastWords(end.Message); message != "" {
		text += ": " + message
	}
	return text
}

// maxMessage limits the shown part of a termination message, in bytes.
const maxMessage = 300

// lastWords returns the end of a termination message's last line.
func lastWords(message string) string {
	last := printer.LastLine(message)
	if len(last) > maxMessage {
		last = strings.ToValidUTF8("…"+last[len(last)-maxMessage:], "")
	}
	return last
}

// logsOf returns the advice to read the container's log.
func logsOf(f *Facts, name string) string {
	return fmt.Sprintf("See kubectl logs %s -c %s -n %s", f.Pod.Name, name, f.Pod.Namespace)
}
