package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// The namespaces of the demo, and the pod and Service in each.
const (
	plain  = "demo-plain"
	meshed = "demo-mesh"
	name   = "web"
)

// Ports of the pod, as in the documents from which the project began. Connections to control are not
// redirected.
const (
	portHTTP    = 6851
	portGRPC    = 6852
	portTCP     = 6853
	portControl = 9800
)

// limit is the timeout of each wait, on a busy machine.
const limit = 90 * time.Second

// scene is the cluster of the demo.
type scene struct {
	client kubernetes.Interface
	config *rest.Config
	image  string
}

// pod returns the pod, which is the same in both namespaces.
func (s *scene) pod() *corev1.Pod {
	probe := func(h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 2, FailureThreshold: 2}
	}
	service := "liveness"
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"app": name},
			Annotations: map[string]string{mesh.AnnotationExcludeInboundPorts: strconv.Itoa(portControl)},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app", Image: s.image, ImagePullPolicy: corev1.PullIfNotPresent,
			Args: []string{
				"--name=" + name, fmt.Sprintf("--http=:%d", portHTTP), fmt.Sprintf("--grpc=:%d", portGRPC),
				fmt.Sprintf("--tcp=:%d", portTCP), fmt.Sprintf("--control=:%d", portControl), "--grpc-service=" + service,
			},
			ReadinessProbe: probe(corev1.ProbeHandler{
				HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(portHTTP)},
			}),
			LivenessProbe: probe(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: portGRPC, Service: &service}}),
			StartupProbe:  probe(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(portTCP)}}),
		}}},
	}
}

// create creates a namespace with the pod and its Service.
func (s *scene) create(ctx context.Context, namespace string, labels map[string]string) error {
	if err := s.remove(ctx, namespace); err != nil {
		return err
	}
	made := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: labels}}
	_, err := s.client.CoreV1().Namespaces().Create(ctx, made, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = s.client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(portHTTP)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	// The service account of a namespace is created a moment after the namespace.
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		_, err := s.client.CoreV1().Pods(namespace).Create(ctx, s.pod(), metav1.CreateOptions{})
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "serviceaccount") {
			return false, nil
		}
		return err == nil, err
	})
}

// remove deletes a namespace of an earlier run, and waits until it no longer exists.
func (s *scene) remove(ctx context.Context, namespace string) error {
	err := s.client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		_, err := s.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

// state is the visible state of the pod.
type state struct {
	ready, inService bool
	restarts         int32
	address          string
	events           []string // "Reason: message", the newest last
}

// String describes the pod in one line.
func (s state) String() string {
	word := "not ready"
	if s.ready {
		word = "ready"
	}
	endpoint := "out of its Service"
	if s.inService {
		endpoint = "in its Service"
	}
	return fmt.Sprintf("%s, %s, %d restarts", word, endpoint, s.restarts)
}

func (s *scene) state(ctx context.Context, namespace string) (state, error) {
	pod, err := s.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return state{}, err
	}
	now := state{address: pod.Status.PodIP}
	for _, c := range pod.Status.Conditions {
		now.ready = now.ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == "app" {
			now.restarts = c.RestartCount
		}
	}
	parts, err := s.client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return state{}, err
	}
	for i := range parts.Items {
		for _, e := range parts.Items[i].Endpoints {
			now.inService = now.inService || e.Conditions.Ready != nil && *e.Conditions.Ready
		}
	}
	events, err := s.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning"})
	if err != nil {
		return state{}, err
	}
	slices.SortStableFunc(events.Items, func(a, b corev1.Event) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for i := range events.Items {
		now.events = append(now.events, events.Items[i].Reason+": "+events.Items[i].Message)
	}
	return now, nil
}

// both waits until both pods satisfy holds, and returns a line about each.
func (s *scene) both(ctx context.Context, holds func(state) bool) ([]string, error) {
	var seen []string
	err := wait.PollUntilContextTimeout(ctx, 250*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		seen = nil
		all := true
		for _, namespace := range []string{plain, meshed} {
			now, err := s.state(ctx, namespace)
			if err != nil {
				return false, err
			}
			seen = append(seen, fmt.Sprintf("%-10s  %s", namespace, now))
			all = all && holds(now)
		}
		return all, nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		err = fmt.Errorf("after %s it is still not so", limit)
	}
	return seen, err
}

// tell changes the responses of both applications.
func (s *scene) tell(ctx context.Context, what string) error {
	for _, namespace := range []string{plain, meshed} {
		now, err := s.state(ctx, namespace)
		if err != nil {
			return err
		}
		if _, err := request(ctx, http.MethodPut, "http://"+mesh.JoinHostPort(now.address, portControl)+what); err != nil {
			return err
		}
	}
	return nil
}

// request sends a request on a new connection, and returns the body of a 200.
func request(ctx context.Context, method, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(r)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err = errors.Join(err, answer.Body.Close()); err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s", method, url, answer.Status)
	}
	return string(body), err
}
