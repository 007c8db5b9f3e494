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

// admission judges whether the pod has a sidecar, and what the webhook has left as it is.
func admission(f *Facts, _ []Finding) []Finding {
	if f.injected() {
		warnings := f.Pod.Annotations[mesh.AnnotationInjectionWarnings]
		if warnings == "" {
			return nil
		}
		return []Finding{{
			Cause: podcause.InjectionWarning, Text: "injection has left something as it is: " + strings.ReplaceAll(warnings, "\n", "; "),
			Evidence: []Evidence{{Of: "annotation " + mesh.AnnotationInjectionWarnings, Says: strings.ReplaceAll(warnings, "\n", "; "), At: at(f.Pod.CreationTimestamp.Time)}},
		}}
	}
	r := Finding{Cause: podcause.NotInjected, Keeps: FromMesh, Evidence: f.askers()}
	absence := webhook.WhyNot(f.webhookNamespace(), f.Pod, f.Injection)
	r.Text = absence.Why
	switch {
	case podspec.Container(&f.Pod.Spec, mesh.ContainerSidecar) != nil:
		r.Text = fmt.Sprintf("its container %s is that of another mesh: it has no volume %s", mesh.ContainerSidecar, mesh.VolumeIdentity)
	case f.NoWebhook:
		r.Text = "it has no sidecar: no webhook of Sonde is installed in this cluster"
	case absence.Missing:
		r.Do = "Pods are injected when they are made: " + f.makeAgain()
	case f.templateAsks():
		r.Text = fmt.Sprintf("it has no sidecar, and is older than the template of %s, which asks for one", f.Owner)
	}
	r.Since = at(f.Pod.CreationTimestamp.Time)
	r.Evidence = withEvents(r.Evidence, f.event(podcause.NotInjected, ""), f.event(podcause.InjectionWarning, ""))
	return []Finding{r}
}

// makeAgain says how the pod is made anew.
func (f *Facts) makeAgain() string {
	kind, name, owned := strings.Cut(f.Owner, " ")
	switch {
	case slices.Contains([]string{"Deployment", "StatefulSet", "DaemonSet"}, kind):
		return fmt.Sprintf("kubectl rollout restart %s/%s -n %s has it made again", strings.ToLower(kind), name, f.Pod.Namespace)
	case owned:
		return "delete it, so that " + f.Owner + " makes it again"
	}
	return "delete it, and make it again"
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

// askers returns the labels and annotations that decide about injection.
func (f *Facts) askers() []Evidence {
	all := []Evidence{{Of: "pod/" + f.Pod.Name, Says: "was made, without a sidecar", At: at(f.Pod.CreationTimestamp.Time)}}
	for _, key := range f.Injection.InjectionKeys() {
		if value, is := f.Pod.Labels[key]; is {
			all = append(all, Evidence{Of: "label of the pod", Says: key + "=" + value})
		}
		if value, is := f.Pod.Annotations[key]; is {
			all = append(all, Evidence{Of: "annotation of the pod", Says: key + "=" + value})
		}
		if f.Namespace == nil {
			continue
		}
		if value, is := f.Namespace.Labels[key]; is {
			all = append(all, Evidence{Of: "label of namespace " + f.Namespace.Name, Says: key + "=" + value, At: at(labelledAt(f.Namespace.ManagedFields, key))})
		}
	}
	return all
}

// labelledAt returns when what has written a label has last written to its object, the zero time if that is not known.
func labelledAt(managed []metav1.ManagedFieldsEntry, key string) time.Time {
	for i := range managed {
		var written struct {
			Metadata struct {
				Labels map[string]json.RawMessage `json:"f:labels"`
			} `json:"f:metadata"`
		}
		if managed[i].FieldsV1 == nil || managed[i].Time == nil || json.Unmarshal(managed[i].FieldsV1.GetRawBytes(), &written) != nil {
			continue
		}
		if _, is := written.Metadata.Labels["f:"+key]; is {
			return managed[i].Time.Time
		}
	}
	return time.Time{}
}

// sidecarFailed is the cause of a sidecar that does not run.
const sidecarFailed Cause = "SidecarFailed"

// scheduling judges whether the pod has a node.
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

// starting judges why containers do not run: the first of them that does not, since those after it may wait for it.
func starting(f *Facts, _ []Finding) []Finding {
	for _, c := range f.containers() {
		if c.status == nil || f.endedByDeletion(c.status) {
			continue
		}
		if r, is := startOf(f, c); is {
			return []Finding{r}
		}
	}
	return stuck(f)
}

// startOf returns why a container does not run, false if it does, or nothing is known to be wrong.
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

// ended says how a container has ended that others wait for.
func ended(f *Facts, r *Finding, c container, last *corev1.ContainerStateTerminated) {
	how := endText(c.Container, last)
	r.Text, r.Do, r.Since = fmt.Sprintf("%s has ended with %s", c.title(), how), logsOf(f, c.Name), at(last.FinishedAt.Time)
	r.Evidence = withEvents([]Evidence{ofStatus(c, last.FinishedAt.Time, how)}, f.event("BackOff", c.Name))
}

// unmade says why the kubelet cannot start a container, and returns false if that is no fault.
func unmade(f *Facts, r *Finding, c container, waiting *corev1.ContainerStateWaiting) bool {
	status := ofStatus(c, time.Time{}, clauses(waiting.Reason, waiting.Message))
	switch {
	case podspec.WaitsForImage(waiting.Reason):
		failed := f.eventThat(func(e *Event) bool {
			return e.Part == c.Name && e.Reason == "Failed" && strings.HasPrefix(e.Note, "Failed to pull")
		})
		why := waiting.Message
		if failed != nil { // the message of a back-off says nothing
			why = failed.Note
		}
		r.Cause, r.Text = "ImageNotPulled", fmt.Sprintf("the image of %s is not there: %s", c.title(), clauses(waiting.Reason, sentence(why)))
		r.Evidence = withEvents([]Evidence{status}, failed)
	case podspec.Unstartable(waiting.Reason):
		r.Cause, r.Text = "ContainerNotMade", fmt.Sprintf("%s cannot be started: %s", c.title(), clauses(waiting.Reason, sentence(waiting.Message)))
		r.Evidence = withEvents([]Evidence{status}, f.event("Failed", c.Name))
	default:
		return false
	}
	return true
}

// stuck returns what the kubelet says of a pod of which no container has run: volumes, the sandbox.
func stuck(f *Facts) []Finding {
	if f.Pod.Spec.NodeName == "" || f.Pod.Status.Phase != corev1.PodPending || slices.ContainsFunc(f.containers(), func(c container) bool {
		return c.status != nil && (c.status.State.Running != nil || lastEnd(c.status) != nil)
	}) {
		return nil
	}
	e := f.eventThat(func(e *Event) bool { return strings.HasPrefix(e.Reason, "Failed") && e.Reason != "FailedScheduling" })
	if e == nil {
		return nil
	}
	return []Finding{{Cause: "NotStarted", Keeps: FromReady, Text: "no container has started: " + sentence(e.Note), Since: at(f.Pod.CreationTimestamp.Time), Evidence: []Evidence{ofEvent(e)}}}
}

// endedByDeletion reports whether a container has ended since the pod is being deleted: as it should.
func (f *Facts) endedByDeletion(s *corev1.ContainerStatus) bool {
	end := s.State.Terminated
	return f.Pod.DeletionTimestamp != nil && end != nil && !end.FinishedAt.Time.Before(f.deletedAt())
}

// deletedAt returns when the deletion of the pod was asked for.
func (f *Facts) deletedAt() time.Time {
	grace := time.Duration(0)
	if s := f.Pod.DeletionGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	return f.Pod.DeletionTimestamp.Add(-grace)
}

// lastEnd returns how a container has ended last, nil if it has not.
func lastEnd(s *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	if s.State.Terminated != nil {
		return s.State.Terminated
	}
	return s.LastTerminationState.Terminated
}

// endText says how a container has ended.
func endText(c *corev1.Container, end *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("exit code %d", end.ExitCode)
	switch {
	case end.Reason == "OOMKilled":
		limit := "it has no limit of its own"
		if q, is := c.Resources.Limits[corev1.ResourceMemory]; is {
			limit = "its limit is " + q.String()
		}
		text += ", killed for the memory that it took: " + limit
	case end.Signal != 0:
		text += fmt.Sprintf(", signal %d", end.Signal)
	}
	if message := lastWords(end.Message); message != "" {
		text += ": " + message
	}
	return text
}

// maxMessage is how much of a container's last words is shown, in bytes.
const maxMessage = 300

// lastWords returns the end of the last line of a termination message.
func lastWords(message string) string {
	last := printer.LastLine(message)
	if len(last) > maxMessage {
		last = strings.ToValidUTF8("…"+last[len(last)-maxMessage:], "")
	}
	return last
}

// logsOf says where more is.
func logsOf(f *Facts, name string) string {
	return fmt.Sprintf("kubectl logs %s -c %s -n %s has its log", f.Pod.Name, name, f.Pod.Namespace)
}
