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

// hookName is the name of the Job that the chart runs first, and the label of its pods.
const hookName = "sonde-crds"

// installation lists the pods of the chart that do not start. Helm waits for them, and is silent about its first Job.
var installation = check{"installation", (*facts).needsPods, func(f *facts, l *lines) {
	ofChart := []string{hookName, "sonde-watchdog"}
	if !f.installed {
		ofChart = append(ofChart, "sonde") // with --installed the line replicas covers them
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
			"wait, and check again: the image may take minutes the first time")
	}
	l.failOf(sorted(stuck), "pods of the chart do not start, and helm waits for them",
		"mend what it says, and run helm upgrade --install, which begins again: "+
			"an install would refuse the name of the one that has failed (docs/guides/install.md)")
	l.ok("no pod of the chart waits to be started")
}}

// unstarted returns what keeps a pod from starting, "" if nothing does, and whether only an operator can change that.
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
			return fmt.Sprintf("%s for %s", cmp.Or(w.Reason, "it waits"), f.now.Sub(pod.CreationTimestamp.Time).Round(time.Second)), false
		}
	}
	return "", false
}

// pullError returns the last error of pulling an image by the events of its pod, "" without one. In a back-off the status lacks it.
func (f *facts) pullError(pod string) string {
	return f.lastWarning("Pod", func(name string) bool { return name == pod }, "Failed to pull image")
}

// lastWarning returns the last warning about an object with that prefix, "" without one.
func (f *facts) lastWarning(kind string, named func(string) bool, prefix string) string {
	var last *corev1.Event
	for i := range f.warnings {
		e := &f.warnings[i]
		if e.InvolvedObject.Kind == kind && named(e.InvolvedObject.Name) && strings.HasPrefix(e.Message, prefix) && (last == nil || last.LastTimestamp.Before(&e.LastTimestamp)) {
			last = e
		}
	}
	if last == nil {
		return ""
	}
	return printer.OneLine(last.Message)
}

// failedHook returns why the Job of the chart has failed, or creates no pod. Its pods are deleted by then, their events last an hour.
func (f *facts) failedHook() []string {
	job := f.hook
	if job == nil {
		return nil
	}
	ofJob, ofPods := func(name string) bool { return name == hookName }, func(name string) bool { return strings.HasPrefix(name, hookName+"-") }
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
