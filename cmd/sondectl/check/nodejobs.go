package check

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/internal/shutdown"
	"github.com/sonde-mesh/sonde/webhook"
)

const (
	// jobName is the prefix of the Jobs' names, and the value of their label.
	jobName   = "sondectl-check"
	labelName = "app.kubernetes.io/name"
	// jobsAtOnce is the number of parallel Jobs.
	jobsAtOnce = 10
	// jobEvery is the interval at which the pod of a Job is checked.
	jobEvery = time.Second
	// jobTTL is the TTL of a finished Job, in case sondectl does not delete it.
	jobTTL = time.Minute
	// deleteWithin limits the time for deleting a Job.
	deleteWithin = 10 * time.Second
)

// toTry lists the rights needed for --nodes.
var toTry = []right{
	{verb: "create", group: batchv1.GroupName, resource: "jobs", namespaced: true},
	{verb: "delete", group: batchv1.GroupName, resource: "jobs", namespaced: true},
	{verb: "create", resource: "pods", namespaced: true},
	{verb: "list", resource: "pods", namespaced: true},
}

// tryNodes runs the commands of the sidecar's init container in a Job on each node, in the network of the Job's pod, so
// that the node does not change. It deletes all Jobs, even after a signal, which is its only error; facts hold the
// others.
func (r *reader) tryNodes(ctx context.Context) error {
	signalled, stop := signal.NotifyContext(ctx, shutdown.Signals()...)
	defer stop()
	context.AfterFunc(signalled, stop) // a second signal kills the program
	is, err := r.tryAll(signalled)
	r.f.tried = read[tried]{is, err}
	if signalled.Err() == nil {
		return nil
	}
	if len(is.kept) > 0 {
		return fmt.Errorf("%w: Jobs could not be deleted: %s: %s", context.Cause(signalled), strings.Join(is.kept, ", "), deleteJobs(is.namespace))
	}
	return fmt.Errorf("%w: deleted the Jobs on nodes", context.Cause(signalled))
}

// tryAll tests all nodes. It returns an error if no node can be tested.
func (r *reader) tryAll(ctx context.Context) (tried, error) {
	asked := r.asked.nodes
	t := tried{namespace: asked.namespace, image: asked.image, within: asked.within}
	if r.f.nodes.err != nil {
		return t, r.f.nodes.err
	}
	if err := r.mayTry(ctx); err != nil {
		return t, err
	}
	if t.image == "" {
		if r.f.deployment.err != nil {
			return t, r.f.deployment.err
		}
		// The chart's sidecars have the image of the control plane.
		plane := podspec.Container(&r.f.deployment.is.Spec.Template.Spec, serviceName)
		if plane == nil {
			return t, fmt.Errorf("find image of the sidecar: Deployment %s has no container %s: set --%s", serviceName, serviceName, flagNodesImage)
		}
		t.image = plane.Image
	}
	pod, err := trialPod(t.image)
	if err != nil {
		return t, err
	}
	var nodes []corev1.Node
	nodes, t.leftOut = choose(r.f.nodes.is)
	if len(nodes) == 0 {
		return t, nil
	}
	switch err := r.refusesPod(ctx, pod); {
	case err == nil:
		r.tryEach(ctx, &t, pod, nodes)
		slices.Sort(t.kept)
	case errors.As(err, new(apierrors.APIStatus)):
		t.refused = err
	default:
		return t, r.in.Explain("create pod (dry run)", err) //nolint:wrapcheck // it is for users
	}
	return t, nil
}

// mayTry returns an error that names the missing rights.
func (r *reader) mayTry(ctx context.Context) error {
	answers, err := r.answers(ctx, toTry, r.asked.nodes.namespace, r.mayI)
	if err != nil {
		return r.in.Explain("check rights", err) //nolint:wrapcheck // it is for users
	}
	if missing := missingOf(answers); len(missing) > 0 {
		return apierrors.NewForbidden(batchv1.Resource("jobs"), jobName,
			fmt.Errorf("you lack in namespace %s: %s", r.asked.nodes.namespace, strings.Join(missing, ", ")))
	}
	return nil
}

// trialPod returns a pod that only runs the commands of the sidecar's init container, and has an errored liveness
// probe.
func trialPod(image string) (*corev1.Pod, error) {
	injected, _, err := webhook.Inject(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{mesh.AnnotationGuardedLiveness: "enabled"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: containerLiveness, LivenessProbe: &corev1.Probe{
			ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(closedPort)}},
		}}}},
	}, webhook.Options{Image: image})
	if err != nil {
		return nil, fmt.Errorf("inject pod: %w", err)
	}
	resources := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi"),
		},
		Limits: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
		},
	}
	c, asked := *podspec.Container(&injected.Spec, mesh.ContainerInit), askedContainer(&injected.Spec)
	c.Resources, asked.Resources = resources, resources
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: jobName, Labels: map[string]string{
			labelName: jobName, mesh.LabelOwnInjection: "disabled", mesh.LabelInjection: "disabled",
		}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{c, asked}, RestartPolicy: corev1.RestartPolicyNever,
			AutomountServiceAccountToken: new(bool), EnableServiceLinks: new(bool), TerminationGracePeriodSeconds: new(int64(1)),
			// The pod tolerates all taints, like the pods of a DaemonSet.
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}, nil
}

const (
	// containerLiveness has an errored liveness probe at closedPort, where no application listens.
	containerLiveness = "liveness"
	closedPort        = 1
)

// askedContainer returns a container with the sidecar's image that answers its own liveness probe like an agent that
// holds a failure back. A single failure makes the kubelet kill it.
func askedContainer(injected *corev1.PodSpec) corev1.Container {
	sidecar, app := podspec.Container(injected, mesh.ContainerSidecar), podspec.Container(injected, containerLiveness)
	probe := app.LivenessProbe.DeepCopy()
	probe.InitialDelaySeconds, probe.PeriodSeconds, probe.FailureThreshold = 3, 1, 1
	c := corev1.Container{
		Name: containerLiveness, Image: sidecar.Image, ImagePullPolicy: sidecar.ImagePullPolicy,
		Command: []string{mesh.AgentProgram, "check", "kubelet"}, LivenessProbe: probe,
		SecurityContext: sidecar.SecurityContext, TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	for _, v := range sidecar.Env {
		if v.Name == mesh.EnvInstanceIP || v.Name == mesh.EnvProbeTable {
			c.Env = append(c.Env, v)
		}
	}
	return c
}

// refusesPod returns why the API server rejects the pod. A Job would not show this: its controller would only retry.
func (r *reader) refusesPod(ctx context.Context, pod *corev1.Pod) error {
	_, err := r.client.CoreV1().Pods(r.asked.nodes.namespace).Create(ctx, pod, metav1.CreateOptions{
		DryRun: []string{metav1.DryRunAll},
	})
	if apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "does not support dry run") {
		return nil // another program's webhook, which does not support dry run
	}
	return err
}

// tryEach tests nodes, jobsAtOnce at a time, and adds their outcomes.
func (r *reader) tryEach(ctx context.Context, t *tried, pod *corev1.Pod, nodes []corev1.Node) {
	end := time.Now().Add(nodesWithin)
	run := strings.ToLower(rand.Text()[:8])
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(jobsAtOnce)
	for i := range nodes {
		group.Go(func() error {
			node, within := &nodes[i], min(t.within, time.Until(end))
			if within <= 0 || ctx.Err() != nil {
				mu.Lock()
				defer mu.Unlock()
				why := fmt.Sprintf("not tested within %s", nodesWithin)
				t.leftOut[why] = append(t.leftOut[why], node.Name)
				return nil
			}
			o, kept := r.tryOne(ctx, jobOn(node.Name, fmt.Sprintf("%s-%s-%d", jobName, run, i), pod, within), within)
			o.node, o.kernel = node.Name, node.Status.NodeInfo.KernelVersion
			mu.Lock()
			defer mu.Unlock()
			t.outcomes = append(t.outcomes, o)
			t.kept = append(t.kept, kept...)
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
}

// jobOn returns a Job that runs the pod on a node. The Job has a deadline and a TTL, in case sondectl does not delete
// it.
func jobOn(node, name string, pod *corev1.Pod, within time.Duration) *batchv1.Job {
	spec := *pod.Spec.DeepCopy()
	// With nodeName, no scheduler would report why the pod does not fit on the node.
	selector := &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
		}}},
	}
	spec.Affinity = &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selector},
	}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{labelName: jobName}},
		Spec: batchv1.JobSpec{
			BackoffLimit: new(int32(0)), ActiveDeadlineSeconds: new(int64((within + deleteWithin) / time.Second)),
			TTLSecondsAfterFinished: new(int32(jobTTL / time.Second)), Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: spec,
			},
		},
	}
}

const noPod = "the Job controller has created no pod"

// tryOne creates a Job, waits until its pod has ended, and deletes the Job. kept is the error of the deletion.
func (r *reader) tryOne(ctx context.Context, job *batchv1.Job, within time.Duration) (o outcome, kept []string) {
	if _, err := r.client.BatchV1().Jobs(r.asked.nodes.namespace).Create(ctx, job, metav1.CreateOptions{}); err != nil {
		return outcome{problem: unstarted, reason: r.in.Explain("create Job", err).Error()}, r.deleteJob(ctx, job.Name) // the API server may have created the Job
	}
	o = outcome{problem: unstarted, reason: noPod}
	// The poll does not cancel requests, which have their own timeout, so that the last outcome comes from a response.
	_ = wait.PollUntilContextTimeout(ctx, jobEvery, within, true, func(context.Context) (done bool, err error) {
		pods, err := r.client.CoreV1().Pods(r.asked.nodes.namespace).List(ctx, metav1.ListOptions{
			LabelSelector: batchv1.JobNameLabel + "=" + job.Name,
		})
		switch {
		case err != nil:
			o = outcome{problem: unstarted, reason: r.in.Explain("list pods of the Job", err).Error()}
		case len(pods.Items) == 0:
			o = outcome{problem: unstarted, reason: noPod}
		default:
			o, done = outcomeOfPod(&pods.Items[0])
		}
		return done, nil
	})
	return o, r.deleteJob(ctx, job.Name)
}

// deleteJob deletes a Job with its pods, even after ctx has ended.
func (r *reader) deleteJob(ctx context.Context, name string) (kept []string) {
	ctx = context.WithoutCancel(ctx)
	var failed error
	_ = wait.PollUntilContextTimeout(ctx, jobEvery, deleteWithin, true, func(context.Context) (done bool, err error) {
		err = r.client.BatchV1().Jobs(r.asked.nodes.namespace).Delete(ctx, name, metav1.DeleteOptions{
			PropagationPolicy: new(metav1.DeletePropagationBackground),
		})
		if failed = err; apierrors.IsNotFound(err) {
			failed = nil
		}
		return failed == nil, nil
	})
	if failed == nil {
		return nil
	}
	return []string{name + ": " + r.in.Explain("delete Job", failed).Error()}
}
