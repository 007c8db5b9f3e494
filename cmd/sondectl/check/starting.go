package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// hookName is the name of the chart's first Job, and the label of its pods.
const hookName = "sonde-crds"

// installation reports pods of the chart that do not start. Helm waits for them, and prints nothing about its first
// Job.
var installation = check{"installation", (*facts).needsPods, func(f *facts, l *lines) {
	ofChart := []string{hookName, "sonde-watchdog"}
	if !f.installed {
		ofChart = append(ofChart, "sonde") // with --installed, the check replicas covers these pods
	}
	var stuck, waits []string
	for i := range f.pods.is {
		pod := &f.pods.is[i]
		if !slices.Contains(ofChart, pod.Labels[labelName]) || ended(pod) {
			continue
		}
		why, hopeless := f.unstarted(pod)
		note := fmt.Sprintf("pod %s in namespace %s: %s", pod.Name, pod.Namespace, why)
		switch {
		case why == "":
		case hopeless:
			stuck = append(stuck, note)
		default:
			waits = append(waits, note)
		}
	}
	if len(stuck)+len(waits) == 0 {
		stuck = f.failedHook()
	}
	if len(stuck) == 0 {
		l.warnOf(sorted(waits), "pods of the chart are starting",
			"wait, and check again: the first pull of the image may take minutes")
	}
	l.failOf(sorted(stuck), "pods of the chart do not start, and helm waits for them",
		"fix the errors, and run helm upgrade --install, which starts again: "+
			"helm install would reject the name of the failed release (docs/guides/install.md)")
	l.ok("no pod of the chart waits to start")
}}

// unstarted returns why a pod does not start, "" if it does, and whether only an operator can fix that.
func (f *facts) unstarted(pod *corev1.Pod) (why string, hopeless bool) {
	if podspec.Has(pod, corev1.PodScheduled, corev1.ConditionFalse) {
		c := podspec.Condition(pod, corev1.PodScheduled)
		return c.Reason + ": " + c.Message, true
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		w := s.State.Waiting
		switch {
		case w == nil:
		case podspec.WaitsForImage(w.Reason):
			return fmt.Sprintf("image %s: %s: %s", s.Image, w.Reason, cmp.Or(f.pullError(pod.Name), w.Message)), true
		case w.Reason == "CrashLoopBackOff", podspec.Unstartable(w.Reason):
			return w.Reason + ": " + w.Message, true
		default:
			return fmt.Sprintf("%s for %s", cmp.Or(w.Reason, "waiting"), f.now.Sub(pod.CreationTimestamp.Time).Round(time.Second)), false
		}
	}
	return "", false
}

// pullError returns the last error of pulling an image from the pod's events, "" without one. In a back-off the status
// lacks the error.
func (f *facts) pullError(pod string) string {
	return f.lastWarning("Pod", func(name string) bool { return name == pod }, "Failed to pull image")
}

// lastWarning returns the last warning about an object that has this prefix, "" without one.
func (f *facts) lastWarning(kind string, named func(string) bool, prefix string) string {
	var last *corev1.Event
	for i := range f.warnings {
		e := &f.warnings[i]
		if e.InvolvedObject.Kind == kind && named(e.InvolvedObject.Name) && strings.HasPrefix(e.Message, prefix) &&
			(last == nil || last.LastTimestamp.Before(&e.LastTimestamp)) {
			last = e
		}
	}
	if last == nil {
		return ""
	}
	return printer.OneLine(last.Message)
}

// failedHook returns why the chart's Job has failed, or creates no pod. Its pods are already deleted; their events last
// an hour.
func (f *facts) failedHook() []string {
	job := f.hook
	if job == nil {
		return nil
	}
	ofJob := func(name string) bool { return name == hookName }
	ofPods := func(name string) bool { return strings.HasPrefix(name, hookName+"-") }
	why := cmp.Or(f.lastWarning("Pod", ofPods, "Failed to pull image"), f.lastWarning("Job", ofJob, "Error creating"))
	for _, c := range job.Status.Conditions {
		if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue {
			return []string{fmt.Sprintf("Job %s in namespace %s has failed: %s", hookName, f.namespace, strings.TrimSuffix(c.Reason+": "+cmp.Or(why, c.Message), ": "))}
		}
	}
	if why != "" && job.Status.Active == 0 {
		return []string{fmt.Sprintf("Job %s in namespace %s: %s", hookName, f.namespace, why)}
	}
	return nil
}
