package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/test/must"
)

// configurationName is the name of the chart's configuration.
const configurationName = "sonde"

// installWebhook creates the chart's injection webhooks, which call the control plane by its address, and waits until
// pods of Mesh default are injected.
func installWebhook(t testing.TB, client kubernetes.Interface, p *plane) {
	t.Helper()
	manifests, err := chart.Render(t.Context(), "--set=webhook.timeoutSeconds=20") // the machine may be busy
	if err != nil {
		t.Fatal(err)
	}
	installWebhooks(t, slices.DeleteFunc(manifests, func(m chart.Manifest) bool { return m.Kind != "MutatingWebhookConfiguration" }), p)
	api := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	must.Poll(t, "the CA in the configuration", func(ctx context.Context) error {
		is, err := api.Get(ctx, configurationName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, w := range is.Webhooks {
			if len(w.ClientConfig.CABundle) == 0 {
				return fmt.Errorf("%s has none", w.Name)
			}
		}
		return nil
	})
	namespace(t, client, "webhook-called", nil)
	must.Poll(t, "the API server to call the webhook", func(ctx context.Context) error { // the API server reads the configuration a moment later
		pod, err := client.CoreV1().Pods("webhook-called").Create(ctx, podOf("webhook-called", "web", labelled(mesh.LabelInjection, "enabled")), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && !hasSidecar(pod) {
			err = errors.New("a pod has no sidecar")
		}
		return err
	})
}

func podOf(namespace, name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "app", Image: "app", Ports: []corev1.ContainerPort{{ContainerPort: 8080}},
			ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}},
		}}},
	}
	p.Spec.Containers[0].ReadinessProbe.TCPSocket.Port.IntVal = 8080
	if change != nil {
		change(p)
	}
	return p
}

func hasSidecar(p *corev1.Pod) bool {
	for _, c := range p.Spec.InitContainers {
		if c.Name == mesh.ContainerSidecar {
			return true
		}
	}
	return false
}

func TestInjection(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "inject", map[string]string{mesh.LabelInjection: "enabled"})
	namespace(t, client, "plain", nil)
	p := startPlane(t, "a", func(o *controlplane.Options) { o.Kubernetes.WebhookConfiguration = configurationName })
	installWebhook(t, client, p)
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")

	tests := map[string]struct {
		namespace string
		change    func(*corev1.Pod)
		options   metav1.CreateOptions
		injected  bool
		refused   string
	}{
		"namespace enabled":      {namespace: "inject", injected: true},
		"dry run":                {namespace: "inject", options: metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}, injected: true},
		"the pod opts out":       {namespace: "inject", change: labelled(mesh.LabelInjection, "disabled")},
		"the pod opts in":        {namespace: "plain", change: labelled(mesh.LabelInjection, "enabled"), injected: true},
		"no label or annotation": {namespace: "plain"},
		"a mirror pod":           {namespace: "inject", change: annotated("kubernetes.io/config.mirror", "x")},
		"a nonexistent mesh":     {namespace: "inject", change: labelled(mesh.LabelMesh, "nowhere"), refused: `kuma.io/mesh: "nowhere": must be the name of an existing mesh`},
		"a wrong port":           {namespace: "inject", change: annotated(mesh.AnnotationVirtualProbesPort, "x"), refused: mesh.AnnotationVirtualProbesPort},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := podOf(tc.namespace, "", tc.change)
			pod.GenerateName = "web-"
			got, err := client.CoreV1().Pods(tc.namespace).Create(t.Context(), pod, tc.options)
			if tc.refused != "" {
				if err == nil || !strings.Contains(err.Error(), tc.refused) || apierrors.IsInternalError(err) {
					t.Errorf("error %v, want %q in it", err, tc.refused)
				}
				return
			}
			// The API server allows mirror pods only for nodes, and rejects this one itself: that shows that the
			// webhook did not.
			if name == "a mirror pod" && err != nil && !strings.Contains(err.Error(), "sonde") {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if hasSidecar(got) != tc.injected || (got.Labels[mesh.LabelMesh] == "default") != tc.injected {
				t.Errorf("sidecar %t, labels %v; want injected: %t", hasSidecar(got), got.Labels, tc.injected)
			}
		})
	}
}

func labelled(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{key: value} }
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = map[string]string{key: value} }
}

// Users do not see the warnings of a Deployment's pods, so the leader emits them as events of the pod and of its
// owner. The API server does not call the webhook for a pod in the host network, so that it does not depend on the
// control plane; the leader emits its warning.
func TestInjectionWarnings(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "warned", nil)
	tests := []struct {
		name, owner string
		change      func(*corev1.Pod)
		want        string
	}{
		{"on the network of the node", "DaemonSet", func(p *corev1.Pod) {
			p.Labels = map[string]string{mesh.LabelOwnInjection: "enabled"}
			p.Spec.HostNetwork, p.Spec.Containers[0].Ports[0].HostPort = true, 8080
		}, "spec.hostNetwork: redirection would apply to the whole node: not injected"},
		{"injected", "StatefulSet", func(p *corev1.Pod) {
			p.Labels = map[string]string{mesh.LabelMesh: "default"}
			p.Annotations = map[string]string{mesh.AnnotationInjectionWarnings: "the first\nthe second"}
			p.Spec.Volumes = []corev1.Volume{{Name: mesh.VolumeIdentity}}
		}, "the first; the second"},
	}
	pods := make([]*corev1.Pod, len(tests))
	for i, tc := range tests {
		pod := podOf("warned", strings.ToLower(tc.owner), func(p *corev1.Pod) {
			tc.change(p)
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: tc.owner, Name: "web", UID: types.UID(tc.owner), Controller: new(true)}}
		})
		var err error
		if pods[i], err = client.CoreV1().Pods("warned").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	startPlane(t, "a")
	for i, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			must.Poll(t, "events of pod and owner", func(ctx context.Context) error {
				events, err := client.EventsV1().Events("warned").List(ctx, metav1.ListOptions{})
				if err != nil {
					return err
				}
				about := map[types.UID]string{}
				for _, e := range events.Items {
					about[e.Regarding.UID] = e.Reason + ": " + e.Note
				}
				want := "InjectionWarning: " + tc.want
				if about[pods[i].UID] != want || about[types.UID(tc.owner)] != want {
					return fmt.Errorf("events %v", about)
				}
				return nil
			})
		})
	}
}

// After a failed webhook call, a Job retries a pod soon: after the start of the control plane, and after a later
// failure.
func TestCatchUp(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "waits", nil)
	job := `{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "waits"}, "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "app", "image": "app"}]}}}}`
	if _, err := cluster.Do(t.Context(), http.MethodPost, "/apis/batch/v1/namespaces/waits/jobs", "application/json", job); err != nil {
		t.Fatal(err)
	}
	fails := func(name string) {
		t.Helper()
		_, err := client.CoreV1().Events("waits").Create(t.Context(), &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Reason: "FailedCreate", LastTimestamp: metav1.Now(),
			InvolvedObject: corev1.ObjectReference{Kind: "Job", APIVersion: "batch/v1", Namespace: "waits", Name: "waits"},
			Message:        `Error creating: Internal error occurred: failed calling webhook "namespace.inject.sonde.dev": connection refused`,
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	fails("before")
	startPlane(t, "a")
	touched := ""
	for range 2 {
		must.Poll(t, "the Job to be touched", func(ctx context.Context) error {
			j, err := client.BatchV1().Jobs("waits").Get(ctx, "waits", metav1.GetOptions{})
			if err == nil && j.Annotations["sonde.dev/retry"] == touched {
				err = fmt.Errorf("annotations %v", j.Annotations)
			}
			if err == nil && touched == "" {
				touched = j.Annotations["sonde.dev/retry"]
				fails("later")
			}
			return err
		})
	}
}
