package kube

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/bench/proc"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

const (
	// podsOfService is the number of pods of each Service, and podsOfNamespace of each namespace.
	podsOfService, podsOfNamespace = 10, 100
	// rolled is how many pods a rolling update replaces.
	rolled = 500
	// rollAtOnce is how many of them it replaces at the same time, each in another Service.
	rollAtOnce = 16
)

// appSpec is the spec of a pod as users write it.
const appSpec = `
containers:
- name: app
  image: registry.example.com/shop/web:1.42.0
  ports: [{containerPort: 8080, name: http}]
  env:
  - {name: LOG_LEVEL, value: info}
  - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
  - {name: DATABASE, valueFrom: {secretKeyRef: {name: database, key: url}}}
  resources: {requests: {cpu: 100m, memory: 256Mi}, limits: {memory: 512Mi}}
  livenessProbe: {httpGet: {path: /live, port: http}, periodSeconds: 10}
  readinessProbe: {httpGet: {path: /ready, port: http}, periodSeconds: 5}
  volumeMounts: [{name: config, mountPath: /etc/app}]
volumes: [{name: config, configMap: {name: app}}]
`

// crowd has pods of a real API server. The webhook injects them, and the benchmark writes their status and
// EndpointSlices as kubelets and controllers do.
type crowd struct {
	client *kubernetes.Clientset
	prefix string // of its namespaces
	size   int
	made   []int // how often each pod was created
}

// BenchmarkPods runs a control plane in its own process. It reads the pods of a cluster, and then 500 of them are
// replaced. No agent is connected.
func BenchmarkPods(b *testing.B) {
	program, err := harness.BuildInto(b.Context(), b.TempDir(), "cmd/sonde-cp")
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{rolled, 5000} {
		b.Run(fmt.Sprintf("pods=%d", size), func(b *testing.B) {
			deleteMeshes(b)
			const webhooks = "--webhook-configuration=" + configurationName
			first := startProcess(b, program, "first", webhooks)
			installWebhook(b, newClient(b), first.plane)
			empty := mustMeasure(b, proc.RestingRSS, first)
			c := newCrowd(b, size)
			first.stop()

			var start, startCPU, rollCPU, rest, most, took float64
			for b.Loop() {
				began := time.Now()
				p := startProcess(b, program, "a", webhooks)
				start += float64(time.Since(began))
				startCPU += float64(mustMeasure(b, proc.RestingCPU, p))
				rest += mustMeasure(b, proc.RestingRSS, p)
				c.callWebhookAt(b, p.webhook)
				before := mustMeasure(b, proc.RestingCPU, p)
				took += float64(c.roll(b))
				rollCPU += float64(mustMeasure(b, proc.RestingCPU, p) - before)
				most += mustMeasure(b, proc.RestingRSS, p)
				p.stop()
			}
			for unit, sum := range map[string]float64{
				"start-ns": start, "start-cpu-ns": startCPU, "rest-bytes": rest, "roll-cpu-ns": rollCPU, "after-roll-bytes": most, "roll-ns": took,
			} {
				b.ReportMetric(sum/float64(b.N), unit)
			}
			b.ReportMetric(empty, "empty-bytes")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func mustMeasure[T any](b *testing.B, measure func(ctx context.Context, pid int) (T, error), p *process) T {
	b.Helper()
	value, err := measure(b.Context(), p.cmd.Process.Pid)
	if err != nil {
		b.Fatal(err)
	}
	return value
}

func newCrowd(b *testing.B, size int) *crowd {
	b.Helper()
	config := rest.CopyConfig(cluster.Config)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		b.Fatal(err)
	}
	c := &crowd{client: client, prefix: fmt.Sprintf("crowd-%d-", size), size: size, made: make([]int, size)}
	for i := 0; i < size; i += podsOfNamespace {
		namespace(b, client, c.namespace(i), map[string]string{mesh.LabelInjection: "enabled"})
	}
	b.Cleanup(func() {
		for i := 0; i < size; i += podsOfNamespace {
			pods, slices := client.CoreV1().Pods(c.namespace(i)), client.DiscoveryV1().EndpointSlices(c.namespace(i))
			if err := pods.DeleteCollection(context.Background(), metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{}); err != nil {
				b.Error(err)
			}
			if err := slices.DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
				b.Error(err)
			}
		}
	})
	c.each(b, size/podsOfService, func(ctx context.Context, service int) error {
		for i := range podsOfService {
			if err := c.create(ctx, service*podsOfService+i); err != nil {
				return err
			}
		}
		in := c.namespace(service * podsOfService)
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: nameOf(service)}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": nameOf(service)}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
		}}
		if _, err := client.CoreV1().Services(in).Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := client.DiscoveryV1().EndpointSlices(in).Create(ctx, c.slice(service), metav1.CreateOptions{})
		return err
	})
	return c
}

// callWebhookAt makes the API server call the webhook at host:port.
func (c *crowd) callWebhookAt(b *testing.B, address string) {
	b.Helper()
	api := c.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	is, err := api.Get(b.Context(), configurationName, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	for i := range is.Webhooks {
		at, err := url.Parse(*is.Webhooks[i].ClientConfig.URL)
		if err != nil {
			b.Fatal(err)
		}
		at.Host = address
		is.Webhooks[i].ClientConfig.URL = new(at.String())
	}
	if _, err := api.Update(b.Context(), is, metav1.UpdateOptions{}); err != nil {
		b.Fatal(err)
	}
	must.Poll(b, "the API server to call the webhook", func(ctx context.Context) error {
		pod := podOf(c.namespace(0), "", nil)
		pod.GenerateName = "trial-"
		_, err := c.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
}

// each calls do n times, several at once.
func (c *crowd) each(b *testing.B, n int, do func(ctx context.Context, i int) error) {
	b.Helper()
	group, ctx := errgroup.WithContext(b.Context())
	group.SetLimit(rollAtOnce)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
}

func (c *crowd) namespace(pod int) string { return fmt.Sprintf("%s%d", c.prefix, pod/podsOfNamespace) }

func nameOf(service int) string { return fmt.Sprintf("web-%d", service) }

// podName has a new suffix each time that a pod is created, as its owner would do.
func (c *crowd) podName(i int) string {
	return fmt.Sprintf("%s-5d8f7c6b9%d-%05d", nameOf(i/podsOfService), c.made[i], i)
}

func (c *crowd) address(i int) string {
	n := i + c.size*(c.made[i]%2)
	return fmt.Sprintf("10.%d.%d.%d", 10+n/62500, n/250%250, 1+n%250)
}

// create creates a pod, and writes that it runs and is ready.
func (c *crowd) create(ctx context.Context, i int) error {
	pods := c.client.CoreV1().Pods(c.namespace(i))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: c.podName(i), Labels: map[string]string{"app": nameOf(i / podsOfService), "pod-template-hash": fmt.Sprintf("5d8f7c6b9%d", c.made[i])},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: nameOf(i / podsOfService), UID: "0b1c", Controller: new(true)}},
	}}
	if err := yaml.UnmarshalStrict([]byte(appSpec), &pod.Spec); err != nil {
		return err
	}
	pod.Spec.NodeName = fmt.Sprintf("node-%d", i%50) // without a node, its deletion would take effect at once
	pod, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if !hasSidecar(pod) {
		return fmt.Errorf("pod %s has no sidecar", pod.Name)
	}
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, c.address(i), []corev1.PodIP{{IP: c.address(i)}}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "app", Ready: true, Started: new(true), Image: pod.Spec.Containers[0].Image, ImageID: pod.Spec.Containers[0].Image + "@sha256:0a1b", ContainerID: "containerd://0a1b",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

// slice returns the EndpointSlice of a Service's pods.
func (c *crowd) slice(service int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: nameOf(service) + "-x1y2z", Labels: map[string]string{discoveryv1.LabelServiceName: nameOf(service)}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
	}
	for n := range podsOfService {
		i := service*podsOfService + n
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{c.address(i)}, Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: c.namespace(i), Name: c.podName(i)},
		})
	}
	return s
}

// roll replaces pods one by one in each Service: a new pod is ready before the old pod is deleted. It returns the
// duration.
func (c *crowd) roll(b *testing.B) time.Duration {
	b.Helper()
	began := time.Now()
	c.each(b, rolled/podsOfService, func(ctx context.Context, service int) error {
		for n := range podsOfService {
			i := service*podsOfService + n
			last := c.podName(i)
			c.made[i]++
			if err := c.create(ctx, i); err != nil {
				return err
			}
			pods, slices := c.client.CoreV1().Pods(c.namespace(i)), c.client.DiscoveryV1().EndpointSlices(c.namespace(i))
			if err := pods.Delete(ctx, last, metav1.DeleteOptions{}); err != nil {
				return err
			}
			if _, err := slices.Update(ctx, c.slice(service), metav1.UpdateOptions{}); err != nil {
				return err
			}
			// The kubelet deletes a pod once it has terminated.
			if err := pods.Delete(ctx, last, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
				return err
			}
		}
		return nil
	})
	return time.Since(began)
}
