//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
)

// appImage is the image of test/app.
const appImage = "docker.io/sonde-test/app:1"

// Ports of the application, unless a manifest sets them. The control port is not redirected to Envoy.
const (
	portHTTP    = 8080
	portGRPC    = 8081
	portTCP     = 8082
	portControl = 9800
)

// newPod returns a pod of the application on a node, with the label app.
func newPod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"app": name},
			Annotations: map[string]string{"traffic.kuma.io/exclude-inbound-ports": strconv.Itoa(portControl)},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{newContainer("app")}},
	}
}

// newContainer returns a container with the application. After SIGTERM it serves for another 3 s, because the removal
// of endpoints takes a while.
func newContainer(name string) corev1.Container {
	return corev1.Container{
		Name: name, Image: appImage,
		Args: []string{
			"--name=$(POD_NAME)", "--grace=3s",
			fmt.Sprintf("--http=:%d", portHTTP), fmt.Sprintf("--grpc=:%d", portGRPC), fmt.Sprintf("--tcp=:%d", portTCP),
			fmt.Sprintf("--control=:%d", portControl),
		},
		Env: []corev1.EnvVar{{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(portHTTP)}},
			PeriodSeconds: 1,
		},
	}
}

// serveOn changes how long a pod's application serves after SIGTERM: on a busy machine, clients may need more than 3
// s to detect the deletion.
func serveOn(spec *corev1.PodSpec, grace time.Duration) {
	app := &spec.Containers[0]
	app.Args[slices.Index(app.Args, "--grace=3s")] = "--grace=" + grace.String()
}

// newService returns a Service of the pods with the label app.
func newService(name string, edit ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{
			{Name: "http", Port: 80, TargetPort: intstr.FromInt32(portHTTP), AppProtocol: new("http")},
			{Name: "grpc", Port: 81, TargetPort: intstr.FromInt32(portGRPC), AppProtocol: new("grpc")},
			{Name: "tcp", Port: 82, TargetPort: intstr.FromInt32(portTCP), AppProtocol: new("tcp")},
		}},
	}
	for _, e := range edit {
		e(s)
	}
	return s
}

// pod returns the current state of a pod.
func (n *namespace) pod(name string) *corev1.Pod {
	n.t.Helper()
	p, err := cluster.client.CoreV1().Pods(n.name).Get(n.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return p
}

// waitPod waits until a pod passes a check.
func (n *namespace) waitPod(name, what string, check func(*corev1.Pod) error) *corev1.Pod {
	n.t.Helper()
	var p *corev1.Pod
	n.wait("pod "+name+": "+what, func() (err error) {
		if p, err = cluster.client.CoreV1().Pods(n.name).Get(n.t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		return check(p)
	})
	return p
}

// waitReady waits until pods are ready.
func (n *namespace) waitReady(names ...string) {
	n.t.Helper()
	for _, name := range names {
		n.waitPod(name, "Ready", isReady)
	}
}

func isReady(p *corev1.Pod) error {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("the pod is not ready: %s", summary(p))
}

func isNotReady(p *corev1.Pod) error {
	if isReady(p) == nil {
		return errors.New("the pod is ready")
	}
	return nil
}

// summary describes the containers of a pod in one line.
func summary(p *corev1.Pod) string {
	var words []string
	for _, s := range statuses(p) {
		words = append(words, fmt.Sprintf("%s ready %t restarts %d %s", s.Name, s.Ready, s.RestartCount, stateOf(s.State)))
	}
	return string(p.Status.Phase) + "; " + strings.Join(words, "; ")
}

func statuses(p *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
}

// status returns the state of a container.
func status(p *corev1.Pod, container string) corev1.ContainerStatus {
	for _, s := range statuses(p) {
		if s.Name == container {
			return s
		}
	}
	return corev1.ContainerStatus{}
}

// container returns a container or init container of a pod, or nil without one of this name.
func container(p *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// deletePod deletes a pod and waits until it no longer exists.
func (n *namespace) deletePod(name string) {
	n.t.Helper()
	uid := n.pod(name).UID
	pods := cluster.client.CoreV1().Pods(n.name)
	if err := pods.Delete(n.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		n.t.Fatal(err)
	}
	n.wait("the end of pod "+name, func() error {
		p, err := pods.Get(n.t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && p.UID != uid {
			return nil
		}
		if err == nil {
			err = errors.New("the pod still exists")
		}
		return err
	})
}

// history is what was observed of a container. A kubelet may report two changes at once, so each aspect has its own
// sequence.
type history struct {
	// Started (of the container's first run), Ready, Restarts, and how each run ended, as "Error 137". A busy kubelet
	// may write an outdated Started for a moment, or copy the previous container's (prober_manager.go,
	// isContainerStarted). So a true value stays true, and later runs are ignored.
	Started, Ready []bool
	Restarts       []int32
	Ends           []string
	// PodReady is the condition Ready of the pod.
	PodReady []bool
}

// watchHistory records the history of a pod's container until the returned function is called.
func (n *namespace) watchHistory(pod, container string) (stop func() history) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	w, err := cluster.client.CoreV1().Pods(n.name).Watch(ctx, metav1.SingleObject(metav1.ObjectMeta{Name: pod}))
	if err != nil {
		cancel()
		n.t.Fatal(err)
	}
	var h history
	var done sync.WaitGroup
	done.Go(func() {
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok && e.Type != watch.Deleted {
				h.add(p, container)
			}
		}
	})
	return func() history {
		cancel()
		w.Stop()
		done.Wait()
		return h
	}
}

func (h *history) add(p *corev1.Pod, container string) {
	s := status(p, container)
	if s.RestartCount == 0 && s.State.Running != nil || s.RestartCount > 0 && len(h.Started) == 0 {
		change(&h.Started, slices.Contains(h.Started, true) || s.Started != nil && *s.Started)
	}
	change(&h.Ready, s.Ready)
	change(&h.Restarts, s.RestartCount)
	change(&h.PodReady, isReady(p) == nil)
	for _, state := range []corev1.ContainerState{s.State, s.LastTerminationState} {
		if end := state.Terminated; end != nil && len(h.Ends) < int(s.RestartCount) {
			h.Ends = append(h.Ends, fmt.Sprintf("%s %d", end.Reason, end.ExitCode))
		}
	}
}

// change appends a value that differs from the last.
func change[T comparable](list *[]T, value T) {
	if l := len(*list); l == 0 || (*list)[l-1] != value {
		*list = append(*list, value)
	}
}
