package kube

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/test/must"
	"github.com/sonde-mesh/sonde/webhook"
)

// startInjection starts a control plane whose webhook the API server calls.
func startInjection(t *testing.T, client kubernetes.Interface, options ...func(*controlplane.Options)) {
	t.Helper()
	deleteMeshes(t)
	p := startPlane(t, "a", append(options, func(o *controlplane.Options) { o.Kubernetes.WebhookConfiguration = configurationName })...)
	installWebhook(t, client, p)
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
}

// createSpec creates a pod with annotations.
func createSpec(t *testing.T, client kubernetes.Interface, namespace, spec string, annotations map[string]string) (*corev1.Pod, error) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "web-", Annotations: annotations}}
	if err := yaml.UnmarshalStrict([]byte(spec), &pod.Spec); err != nil {
		t.Fatal(err)
	}
	return client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
}

// limitRange makes a LimitRange of containers.
func limitRange(t *testing.T, client kubernetes.Interface, namespace, limits string) {
	t.Helper()
	l := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "containers"}, Spec: corev1.LimitRangeSpec{Limits: make([]corev1.LimitRangeItem, 1)}}
	if err := yaml.UnmarshalStrict([]byte(limits), &l.Spec.Limits[0]); err != nil {
		t.Fatal(err)
	}
	l.Spec.Limits[0].Type = corev1.LimitTypeContainer
	if _, err := client.CoreV1().LimitRanges(namespace).Create(t.Context(), l, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestQOSClass creates each pod with and without the mesh, and compares the QoS class from the API server: Guaranteed
// stays Guaranteed.
func TestQOSClass(t *testing.T) {
	client := newClient(t)
	const guaranteed = "containers: [{name: app, image: app, resources: {limits: {cpu: 2, memory: 1Gi}}}]"
	startInjection(t, client)
	for kind, labels := range map[string]map[string]string{"plain": nil, "mesh": {mesh.LabelInjection: "enabled"}} {
		namespace(t, client, "qos-"+kind, labels)
		namespace(t, client, "qos-limits-"+kind, labels)
		limitRange(t, client, "qos-limits-"+kind, "default: {cpu: 300m, memory: 256Mi}")
	}
	tests := map[string]struct {
		namespace, spec string
		annotations     map[string]string
		want            corev1.PodQOSClass
	}{
		"limits alone":              {spec: guaranteed, want: corev1.PodQOSGuaranteed},
		"requests alike":            {spec: "containers: [{name: app, image: app, resources: {requests: {cpu: 2000m, memory: 1024Mi}, limits: {cpu: 2, memory: 1Gi}}}]", want: corev1.PodQOSGuaranteed},
		"several":                   {spec: guaranteed + "\ninitContainers: [{name: a, image: a, resources: {limits: {cpu: 1, memory: 1Gi}}}, {name: b, image: b, restartPolicy: Always, resources: {limits: {cpu: 100m, memory: 64Mi}}}]", want: corev1.PodQOSGuaranteed},
		"one without":               {spec: guaranteed + "\ninitContainers: [{name: a, image: a}]", want: corev1.PodQOSBurstable},
		"a lower request":           {spec: "containers: [{name: app, image: app, resources: {requests: {cpu: 1}, limits: {cpu: 2, memory: 1Gi}}}]", want: corev1.PodQOSBurstable},
		"nothing":                   {spec: "containers: [{name: app, image: app}]", want: corev1.PodQOSBestEffort},
		"a LimitRange's":            {namespace: "limits-", spec: "containers: [{name: app, image: app}]", want: corev1.PodQOSGuaranteed},
		"of the pod":                {spec: "resources: {limits: {cpu: 1, memory: 1Gi}}\ncontainers: [{name: app, image: app}]", want: corev1.PodQOSGuaranteed},
		"of the pod, slightly more": {spec: "resources: {limits: {cpu: 1}}\ncontainers: [{name: app, image: app}]", want: corev1.PodQOSBurstable},
		"of the pod, a part for the sidecar": {
			spec:        "resources: {limits: {cpu: 1, memory: 1Gi}}\ncontainers: [{name: app, image: app}]",
			annotations: map[string]string{mesh.AnnotationSidecarCPULimit: "200m"}, want: corev1.PodQOSGuaranteed,
		},
		"annotations":           {spec: guaranteed, annotations: map[string]string{mesh.AnnotationSidecarCPU: "100m", mesh.AnnotationSidecarMemoryLimit: "1Gi"}, want: corev1.PodQOSGuaranteed},
		"different annotations": {spec: guaranteed, annotations: map[string]string{mesh.AnnotationSidecarCPU: "100m", mesh.AnnotationSidecarCPULimit: "1"}, want: corev1.PodQOSGuaranteed},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			without, err := createSpec(t, client, "qos-"+tc.namespace+"plain", tc.spec, tc.annotations)
			if err != nil {
				t.Fatal(err)
			}
			with, err := createSpec(t, client, "qos-"+tc.namespace+"mesh", tc.spec, tc.annotations)
			if err != nil {
				t.Fatal(err)
			}
			want := tc.want
			if want == corev1.PodQOSBestEffort || name == "different annotations" {
				want = corev1.PodQOSBurstable
			}
			if !hasSidecar(with) || without.Status.QOSClass != tc.want || with.Status.QOSClass != want {
				t.Errorf("the pod is %s, want %s; in the mesh it is %s, want %s", without.Status.QOSClass, tc.want, with.Status.QOSClass, want)
			}
		})
	}
}

// TestLimitRange has a namespace whose LimitRange rejects the sidecar's resources, until an administrator sets
// other values.
func TestLimitRange(t *testing.T) {
	client := newClient(t)
	const name, app = "limit-range", "containers: [{name: app, image: app, resources: {requests: {cpu: 100m, memory: 128Mi}}}]"
	startInjection(t, client, func(o *controlplane.Options) {
		o.Kubernetes.Injection.Resources = webhook.Resources{CPU: "20m", Memory: "70Mi"}
	})
	namespace(t, client, name, map[string]string{mesh.LabelInjection: "enabled"})
	limitRange(t, client, name, "{default: {cpu: 200m, memory: 256Mi}, min: {cpu: 30m, memory: 128Mi}, max: {cpu: 500m, memory: 300Mi}, maxLimitRequestRatio: {cpu: 4}}")
	if _, err := createSpec(t, client, name, app, nil); err == nil || !strings.Contains(err.Error(), "minimum cpu usage per Container is 30m, but request is 20m") {
		t.Fatalf("error %v, want one about the minimum CPU, which exceeds the control plane's option", err)
	}
	annotate(t, client, name, map[string]string{mesh.AnnotationSidecarCPU: "many"})
	must.Poll(t, "a refusal", func(context.Context) error {
		_, err := createSpec(t, client, name, app, nil)
		if want := `namespace limit-range: metadata.annotations["sonde.dev/sidecar-cpu"]: "many": must be a quantity of at least 1m, such as 100m or 1.5`; err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("error %w, want %q", err, want)
		}
		return nil
	})
	annotate(t, client, name, map[string]string{
		mesh.AnnotationSidecarCPU: "100m", mesh.AnnotationSidecarCPULimit: "400m", mesh.AnnotationSidecarMemory: "128Mi", mesh.AnnotationSidecarMemoryLimit: "300Mi",
	})
	must.Poll(t, "a pod", func(context.Context) error {
		_, err := createSpec(t, client, name, app, nil)
		return err
	})
	if _, err := createSpec(t, client, name, app, map[string]string{mesh.AnnotationSidecarCPULimit: "600m"}); err == nil || !strings.Contains(err.Error(), "maximum cpu usage per Container is 500m, but limit is 600m") {
		t.Errorf("error %v, want one about the pod's annotation, which takes precedence", err)
	}
}

func annotate(t *testing.T, client kubernetes.Interface, namespace string, annotations map[string]string) {
	t.Helper()
	must.Poll(t, "annotations of "+namespace, func(ctx context.Context) error {
		n, err := client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Annotations = maps.Clone(annotations)
		_, err = client.CoreV1().Namespaces().Update(ctx, n, metav1.UpdateOptions{})
		return err
	})
}

// TestResourceQuota checks that a pod uses as much of a quota as its containers and the sidecar: kuma-init adds
// nothing.
func TestResourceQuota(t *testing.T) {
	client := newClient(t)
	const name = "resource-quota"
	startInjection(t, client)
	namespace(t, client, name, map[string]string{mesh.LabelInjection: "enabled"})
	hard := corev1.ResourceList{"requests.cpu": resource.MustParse("550m"), "limits.memory": resource.MustParse("612Mi")}
	quotas := client.CoreV1().ResourceQuotas(name)
	q, err := quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	q.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{"requests.cpu": {}, "limits.memory": {}}} // as its controller does
	if _, err := quotas.UpdateStatus(t.Context(), q, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	const app = "containers: [{name: app, image: app, resources: {limits: {cpu: 300m, memory: 100Mi}}}]"
	if _, err := createSpec(t, client, name, app, map[string]string{mesh.AnnotationSidecarCPULimit: "251m"}); err == nil || !strings.Contains(err.Error(), "exceeded quota: resource-quota, requested: requests.cpu=551m") {
		t.Errorf("error %v, want one about the quota", err)
	}
	if pod, err := createSpec(t, client, name, app, nil); err != nil {
		t.Error(err)
	} else if pod.Status.QOSClass != corev1.PodQOSGuaranteed {
		t.Errorf("the pod is %s", pod.Status.QOSClass)
	}
}
