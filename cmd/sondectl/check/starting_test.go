package check

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestInstallation has pods of the chart that do not start: helm prints nothing for four minutes, and then only that a
// Job has failed.
func TestInstallation(t *testing.T) {
	const image, notFound = "registry.example.com/sonde:1", `Failed to pull image "registry.example.com/sonde:1": not found`
	pod := func(name, label, reason, message string) corev1.Pod {
		p := corev1.Pod{ObjectMeta: named(name, map[string]string{"app.kubernetes.io/name": label})}
		p.Namespace, p.CreationTimestamp = "sonde-system", metav1.NewTime(now.Add(-20*time.Second))
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "apply", Image: image, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}
		return p
	}
	hook := func(reason, message string) corev1.Pod { return pod("sonde-crds-x", "sonde-crds", reason, message) }
	nowhere := hook("", "")
	nowhere.Status = corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes are available"}}}
	done := hook("ErrImagePull", "x")
	done.Status.Phase = corev1.PodSucceeded
	warning := func(kind, name, message string, ago time.Duration) corev1.Event {
		return corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name}, Message: message, LastTimestamp: metav1.NewTime(now.Add(-ago))}
	}
	failed := &batchv1.Job{Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{{
		Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "DeadlineExceeded", Message: "Job was active longer than specified deadline",
	}}}}
	const none = "[ok]   installation: no pod of the chart waits to start\n"
	const do = "       do: fix the errors, and run helm upgrade --install, which starts again: helm install would reject the name of the failed release (docs/guides/install.md)\n"
	fails := func(note string) string {
		return "[fail] installation: pods of the chart do not start, and helm waits for them\n       " + note + "\n" + do
	}
	tests{
		"nothing goes on":    {facts{pods: podsOf(shop("web", nil), done)}, none},
		"it is being made":   {facts{pods: podsOf(), hook: &batchv1.Job{}}, none},
		"the pull goes on":   {facts{pods: podsOf(hook("ContainerCreating", ""))}, "[warn] installation: pods of the chart are starting\n       pod sonde-crds-x in namespace sonde-system: ContainerCreating for 20s\n       do: wait, and check again: the first pull of the image may take minutes\n"},
		"the pull fails":     {facts{pods: podsOf(hook("ErrImagePull", "not found"))}, fails("pod sonde-crds-x in namespace sonde-system: image registry.example.com/sonde:1: ErrImagePull: not found")},
		"it is tried later":  {facts{pods: podsOf(hook("ImagePullBackOff", "Back-off")), warnings: []corev1.Event{warning("Pod", "sonde-crds-x", notFound, time.Second), warning("Pod", "sonde-crds-x", "Failed to pull image: before", time.Minute)}}, fails("pod sonde-crds-x in namespace sonde-system: image registry.example.com/sonde:1: ImagePullBackOff: " + notFound)},
		"no node":            {facts{pods: podsOf(nowhere)}, fails("pod sonde-crds-x in namespace sonde-system: Unschedulable: 0/1 nodes are available")},
		"it crashes":         {facts{pods: podsOf(hook("CrashLoopBackOff", "back-off"))}, fails("pod sonde-crds-x in namespace sonde-system: CrashLoopBackOff: back-off")},
		"the Job has ended":  {facts{hook: failed, warnings: []corev1.Event{warning("Pod", "sonde-crds-x", notFound, time.Minute)}}, fails("Job sonde-crds in namespace sonde-system has failed: DeadlineExceeded: " + notFound)},
		"and events too":     {facts{hook: failed}, fails("Job sonde-crds in namespace sonde-system has failed: DeadlineExceeded: Job was active longer than specified deadline")},
		"it makes no pod":    {facts{hook: &batchv1.Job{}, warnings: []corev1.Event{warning("Job", "sonde-crds", "Error creating: pods are forbidden: exceeded quota", time.Second)}}, fails("Job sonde-crds in namespace sonde-system: Error creating: pods are forbidden: exceeded quota")},
		"a replica":          {facts{pods: podsOf(pod("sonde-cp-a", "sonde", "ErrImagePull", "no"))}, fails("pod sonde-cp-a in namespace sonde-system: image registry.example.com/sonde:1: ErrImagePull: no")},
		"of an installation": {facts{installed: true, pods: podsOf(pod("sonde-cp-a", "sonde", "ErrImagePull", "no"))}, none},
		"the watchdog":       {facts{installed: true, pods: podsOf(pod("sonde-watchdog-a", "sonde-watchdog", "ErrImagePull", "no"))}, fails("pod sonde-watchdog-a in namespace sonde-system: image registry.example.com/sonde:1: ErrImagePull: no")},
		"may not be read":    {facts{pods: read[[]corev1.Pod]{err: errForbidden}}, "[warn] installation: not checked: things is forbidden: no right\n       do: get the right, or ask a user who has it to check\n"},
	}.run(t, installation)
}
