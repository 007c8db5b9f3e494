package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/leader"
	"github.com/sonde-mesh/sonde/controller/secrets"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/must"
)

// holdLease makes a nonexistent replica the leader until the Lease is deleted, at the latest when the test
// ends.
func holdLease(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	namespace(t, client, systemNamespace, nil)
	deleteLease(t, client)
	now := metav1.NewMicroTime(time.Now())
	_, err := client.CoordinationV1().Leases(systemNamespace).Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: leader.LeaseName},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("gone"), LeaseDurationSeconds: new(int32(3600)), AcquireTime: &now, RenewTime: &now,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteLease(t, client) })
}

func deleteLease(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	err := client.CoordinationV1().Leases(systemNamespace).Delete(context.WithoutCancel(t.Context()), leader.LeaseName, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// makeHeld creates a Service whose only pod is behind a load balancer and keeps serving, although an
// administrator drains it.
func makeHeld(t *testing.T, client kubernetes.Interface, ns string) {
	t.Helper()
	namespace(t, client, ns, nil)
	pod, err := client.CoreV1().Pods(ns).Create(t.Context(), podOf(ns, "web", func(p *corev1.Pod) {
		p.Labels = map[string]string{mesh.LabelMesh: "default"}
		p.Annotations = map[string]string{mesh.AnnotationDrain: "update"}
		p.Spec.Volumes = []corev1.Volume{{Name: mesh.VolumeIdentity}} // marks an injected pod for the control plane
		p.Spec.InitContainers = []corev1.Container{{
			Name: mesh.ContainerSidecar, Image: "sidecar", RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Args: []string{"run", mesh.ArgLBHealthPort + "9800"},
		}}
	}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.PodIP, pod.Status.PodIPs = "10.0.0.1", []corev1.PodIP{{IP: "10.0.0.1"}}
	if _, err := client.CoreV1().Pods(ns).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"a": "b"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.DiscoveryV1().EndpointSlices(ns).Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: "web", UID: pod.UID},
		}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestNewLeaderTellsWhatIsHeld checks that a new leader emits the event for a drain that was held back
// while no replica led.
func TestNewLeaderTellsWhatIsHeld(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	holdLease(t, client)
	makeHeld(t, client, "held")
	p := startPlane(t, "follower", func(o *controlplane.Options) { o.Kubernetes.Drain.MinServing = 1 })
	p.says(t, "/metrics", "\nsonde_drain_proxies{reason=\"served_on\"} 1\n")
	p.says(t, "/metrics", "\nsonde_leader 0\n")
	deleteLease(t, client)
	must.Poll(t, "the event, once the follower leads", func(ctx context.Context) error {
		all, err := client.EventsV1().Events("held").List(ctx, metav1.ListOptions{FieldSelector: "reason=DrainHeld"})
		if err == nil && len(all.Items) != 1 {
			err = fmt.Errorf("%d events", len(all.Items))
		}
		return err
	})
}

// runCandidate makes a replica take part in the election, without the rest of a control plane. epochs receives the
// epochs of its terms.
func runCandidate(t *testing.T, client kubernetes.Interface, ns, name string, epochs chan<- int64) (stop func()) {
	t.Helper()
	ctx, cancel := detached(t)
	done := make(chan error, 1)
	go func() {
		done <- leader.Run(ctx, leader.Options{
			Client: client.CoordinationV1(), Namespace: ns, Identity: name, OldEpoch: secrets.New(client.CoreV1().Secrets(ns)),
			Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
			Tasks: []leader.Task{func(ctx context.Context, epoch int64) error {
				epochs <- epoch
				<-ctx.Done()
				return nil
			}},
		})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() of %s = %v", name, err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// TestEpochsGrow has two replicas lead in turn, with a real API server. Meanwhile, the Lease is deleted, and an
// earlier release leads once.
func TestEpochsGrow(t *testing.T) {
	const ns = "epochs"
	client := newClient(t)
	namespace(t, client, ns, nil)
	kept := secrets.New(client.CoreV1().Secrets(ns))
	last := time.Now().Unix() + 1000
	version, err := kept.Create(t.Context(), leader.SecretName, oldEpoch(last)) // left by 0.1.0, whose clock was ahead
	if err != nil {
		t.Fatal(err)
	}
	epochs := make(chan int64, 100)
	stop := map[string]func(){}
	for _, name := range []string{"a", "b"} {
		stop[name] = runCandidate(t, client, ns, name, epochs)
	}
	next := func(what string) {
		t.Helper()
		select {
		case epoch := <-epochs:
			if epoch <= last {
				t.Errorf("%s: epoch %d after %d", what, epoch, last)
			}
			last = epoch
		case <-wait.Context(t).Done():
			t.Fatalf("%s: no replica leads", what)
		}
	}
	next("the first leader")
	// Each change deletes either the Lease with its epoch, or the secret: the other one remains.
	for _, change := range []string{"nothing", "an earlier release leads", "Lease", "nothing", "secret"} {
		lease, err := client.CoordinationV1().Leases(ns).Get(t.Context(), leader.LeaseName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := lease.Annotations[leader.AnnotationEpoch]; got != strconv.FormatInt(last, 10) {
			t.Errorf("the Lease has epoch %q, want %d", got, last)
		}
		switch change {
		case "an earlier release leads":
			last += 1000
			_, err = kept.Update(t.Context(), leader.SecretName, oldEpoch(last), version)
		case "Lease":
			last = max(last-1, time.Now().Unix()) // the secret has at least this epoch
			err = client.CoordinationV1().Leases(ns).Delete(t.Context(), leader.LeaseName, metav1.DeleteOptions{})
		case "secret":
			err = client.CoreV1().Secrets(ns).Delete(t.Context(), "sonde-"+leader.SecretName, metav1.DeleteOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		leads := *lease.Spec.HolderIdentity
		stop[leads]()
		next("after " + leads + ", changed: " + change)
		stop[leads] = runCandidate(t, client, ns, leads, epochs)
	}
}

// oldEpoch returns the Secret data in which releases up to 0.1.0 stored an epoch.
func oldEpoch(epoch int64) []byte { return fmt.Appendf(nil, `{"epoch": %d, "replica": "old"}`, epoch) }

// TestLeaderWithoutEpoch checks that a replica does not lead with an invalid Lease, and reports the error; meanwhile
// it serves.
func TestLeaderWithoutEpoch(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, systemNamespace, nil)
	deleteLease(t, client)
	bad := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leader.LeaseName, Annotations: map[string]string{leader.AnnotationEpoch: "-1"}}}
	if _, err := client.CoordinationV1().Leases(systemNamespace).Create(t.Context(), bad, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteLease(t, client) })
	var log logtest.Buffer
	p := startPlane(t, "nonsense", func(o *controlplane.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	must.Poll(t, "the error that names the field", func(context.Context) error {
		if text := log.String(); !strings.Contains(text, `level=ERROR msg="not leading`) || !strings.Contains(text, "annotation sonde.dev/epoch: -1: must be from 1 to 9007199254740992") {
			return errors.New(text)
		}
		return nil
	})
	p.says(t, "/metrics", "\nsonde_leader 0\n")
	deleteLease(t, client)
	p.says(t, "/metrics", "\nsonde_leader 1\n")
}
