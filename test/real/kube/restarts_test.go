package kube

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/yaml"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestRestartsAreGranted reports a failing guarded liveness probe: the agent receives a grant that is in the API.
func TestRestartsAreGranted(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "restarts", nil)
	p := startPlane(t, "a")
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	grantAndRefund(t, client, p, "restarts")
}

// grantAndRefund creates a guarded pod whose liveness probe fails. The failure is held while the pod is suspended;
// after the grant, the probe passes before the kubelet checks it. An old grant is deleted.
func grantAndRefund(t *testing.T, client kubernetes.Interface, p *plane, namespace string) {
	t.Helper()
	grants := sondePath(namespace, "restartgrants")
	const old = `{apiVersion: sonde.dev/v1alpha1, kind: RestartGrant, metadata: {name: old}, spec: {pod: gone, podUID: u, container: app, restarts: 0, try: 0, workload: Pod/shop/gone, epoch: 1, granted: "2020-01-01T00:00:00.000000Z"}}`
	if _, err := cluster.Do(t.Context(), http.MethodPost, grants, "application/yaml", old); err != nil {
		t.Fatal(err)
	}
	stream, send := newGuardedSession(t, client, p, namespace, func(p *corev1.Pod) { p.Annotations[mesh.AnnotationLiveness] = string(mesh.LivenessSuspended) })
	send(&agentv1.Liveness{Held: []*agentv1.HeldLiveness{{Container: "app", Reason: "refused"}}})
	pods := client.CoreV1().Pods(namespace)
	must.Poll(t, "the pod's condition of held containers", func(ctx context.Context) error { return condition(ctx, pods, corev1.ConditionTrue, "Suspended") })
	if _, err := pods.Patch(t.Context(), "guarded", types.MergePatchType, []byte(`{"metadata": {"annotations": {"sonde.dev/liveness": null}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	granted := nextGrant(t, stream)
	if granted.GetContainer() != "app" || granted.GetEpoch() < 1 {
		t.Errorf("the agent receives %v", granted)
	}
	send(&agentv1.Liveness{Passing: []string{"app"}, Unused: []string{granted.GetName()}})
	must.Poll(t, "the grant to be refunded, and the old one to be deleted", func(ctx context.Context) error {
		text, err := cluster.Do(ctx, http.MethodGet, grants, "", "")
		if err != nil {
			return err
		}
		var list v1alpha1.RestartGrantList
		if err := yaml.Unmarshal([]byte(text), &list); err != nil {
			return err
		}
		if len(list.Items) != 1 || list.Items[0].Name != granted.GetName() || list.Items[0].Status.Outcome != "refunded" {
			return fmt.Errorf("there are %+v", list.Items)
		}
		return nil
	})
	must.Poll(t, "the pod's condition without held containers", func(ctx context.Context) error { return condition(ctx, pods, corev1.ConditionFalse, "NotHeld") })
	if err := stream.CloseSend(); err != nil {
		t.Error(err)
	}
}

// nextGrant waits until an agent receives a grant.
func nextGrant(t *testing.T, stream agentv1.AgentService_SessionClient) *agentv1.RestartGrant {
	t.Helper()
	for {
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if all := r.GetRestarts().GetGrants(); len(all) > 0 {
			return all[0]
		}
	}
}

// condition returns an error unless the pod guarded has the condition of held liveness probes, and keeps its other
// conditions.
func condition(ctx context.Context, pods typedcorev1.PodInterface, status corev1.ConditionStatus, reason string) error {
	p, err := pods.Get(ctx, "guarded", metav1.GetOptions{})
	if err != nil {
		return err
	}
	of := func(name corev1.PodConditionType) corev1.PodCondition {
		i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == name })
		if i < 0 {
			return corev1.PodCondition{}
		}
		return p.Status.Conditions[i]
	}
	if c := of(mesh.ConditionLivenessHeld); c.Status != status || c.Reason != reason || of(corev1.PodReady).Status != corev1.ConditionTrue {
		return fmt.Errorf("conditions %+v", p.Status.Conditions)
	}
	return nil
}

// newGuardedSession creates a guarded pod, and returns its agent's session and a function that reports on its
// liveness probe.
func newGuardedSession(t *testing.T, client kubernetes.Interface, p *plane, namespace string, edit ...func(*corev1.Pod)) (agentv1.AgentService_SessionClient, func(*agentv1.Liveness)) {
	t.Helper()
	m := newGuardedPod(t, client, namespace, edit...)
	m.join(p)
	stream, err := agentv1.NewAgentServiceClient(m.dial(p)).Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hello := m.hello(false)
	hello.GetHello().Features = append(hello.GetHello().GetFeatures(), agentv1.FeatureRestartGrants)
	if err := stream.Send(hello); err != nil {
		t.Fatal(err)
	}
	return stream, func(l *agentv1.Liveness) {
		t.Helper()
		if err := stream.Send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Liveness{Liveness: l}}); err != nil {
			t.Fatal(err)
		}
	}
}

// newGuardedPod creates a pod with one guarded container, and returns its agent as a machine.
func newGuardedPod(t *testing.T, client kubernetes.Interface, namespace string, edit ...func(*corev1.Pod)) *machine {
	t.Helper()
	pod := podOf(namespace, "guarded", func(p *corev1.Pod) {
		p.Labels = map[string]string{mesh.LabelMesh: "default"}
		p.Annotations = map[string]string{mesh.AnnotationGuardedLiveness: "enabled"}
		p.Spec.Volumes = []corev1.Volume{{Name: mesh.VolumeIdentity}}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: mesh.ContainerSidecar, Image: "sonde", Env: []corev1.EnvVar{{
			Name: mesh.EnvProbeTable, Value: `[{"container":"app","type":"liveness","guarded":true,"httpGet":{"path":"/","port":8080}}]`,
		}}})
		for _, e := range edit {
			e(p)
		}
	})
	pods := client.CoreV1().Pods(namespace)
	pod, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	if err == nil {
		pod.Status.PodIP, pod.Status.PodIPs = "10.1.0.7", []corev1.PodIP{{IP: "10.1.0.7"}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		pod.Status.Phase, pod.Status.ContainerStatuses = corev1.PodRunning, []corev1.ContainerStatus{{Name: "app"}}
		pod, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, name: "guarded." + namespace, process: rand.Text(), started: time.Now(), key: ca.NewKey(), roots: x509.NewCertPool()}
	if !m.roots.AppendCertsFromPEM(secret(t, client, "sonde-serving-ca.crt")) {
		t.Fatal(errors.New("the control plane has no CA"))
	}
	m.token = podToken(t, client, pod, mesh.TokenAudience)
	return m
}
