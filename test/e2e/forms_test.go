//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// sondeImage is the image that the chart installs.
const sondeImage = "docker.io/sonde-mesh/sonde:dev"

// injectAs returns a pod with a sidecar of a form, from `sondectl inject`. The webhook does not change the form.
func (n *namespace) injectAs(form webhook.Form, pod *corev1.Pod, ca string) *corev1.Pod {
	n.t.Helper()
	p, _, err := webhook.Inject(pod, webhook.Options{Sidecar: form, Image: sondeImage, Mesh: n.name, ControlPlaneCA: ca})
	if err != nil {
		n.t.Fatal(err)
	}
	return p
}

// TestForms has pods with a native sidecar and with an ordinary sidecar container.
func TestForms(t *testing.T) {
	t.Parallel()
	n, o := newMesh(t, "STRICT"), newNamespace(t, outside)
	n.create(newPod("peer", "node1"), newService("peer"))
	o.create(newPod("stranger", "node1"), newService("stranger"))
	n.waitReady("peer")
	o.waitReady("stranger")
	ca := n.pod("peer").Annotations[mesh.AnnotationControlPlaneCA]
	for _, form := range []webhook.Form{webhook.Native, webhook.Container} {
		t.Run(string(form), func(t *testing.T) {
			t.Parallel()
			n := &namespace{t: t, name: n.name}
			p := severalContainers(string(form), o.name, n.name, form)
			n.create(n.injectAs(form, p, ca), namedService(p.Name+"-web", p.Name, "web"), namedService(p.Name+"-admin", p.Name, "admin"), newService(p.Name))
			n.waitReady(p.Name)
			if native := len(n.pod(p.Name).Spec.Containers) == 2; native != (form == webhook.Native) {
				t.Fatalf("the form has changed: %s", summary(n.pod(p.Name)))
			}
			checkServices(t, n.app("peer"), n, p.Name)
			if counts := n.app(p.Name).counts(); counts["/started"] != 1 {
				t.Errorf("the postStart hook was called %d times: %v", counts["/started"], counts)
			}
			n.checkPreStop(p.Name)
		})
	}
}

// severalContainers returns a pod with an init container that makes calls, and two containers with named ports,
// probes and hooks.
func severalContainers(name, outsideNamespace, meshNamespace string, form webhook.Form) *corev1.Pod {
	p := newPod(name, "node2")
	// The pod queries names before search domains, and this cluster's DNS returns SERVFAIL.
	p.Spec.DNSConfig = &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: new("1")}}}
	p.Spec.InitContainers = []corev1.Container{{Name: "before", Image: appImage, Args: []string{"--call=http://stranger." + outsideNamespace + "/"}}}
	if form == webhook.Native { // an ordinary sidecar starts after it
		p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{
			Name: "member", Image: appImage, Args: []string{"--call=http://peer." + meshNamespace + "/"},
		})
	}
	serveOn(&p.Spec, 15*time.Second) // checkPreStop may need responses for this long
	first := &p.Spec.Containers[0]
	first.Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: portHTTP}}
	first.ReadinessProbe.HTTPGet.Port = intstr.FromString("web")
	first.Lifecycle = &corev1.Lifecycle{PreStop: hook("/stopping", intstr.FromString("web"))}
	second := newContainer("second")
	second.Args = []string{"--name=second", "--grace=3s", "--http=:8090"}
	second.Ports = []corev1.ContainerPort{{Name: "admin", ContainerPort: 8090}}
	second.ReadinessProbe.HTTPGet.Port = intstr.FromString("admin")
	// The first container listens by now: without a mesh, too, an earlier hook would fail.
	second.Lifecycle = &corev1.Lifecycle{PostStart: hook("/started", intstr.FromInt32(portHTTP))}
	p.Spec.Containers = append(p.Spec.Containers, second)
	return p
}

func hook(path string, port intstr.IntOrString) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: port}}
}

// namedService returns a Service with one named port, of the pods with a label.
func namedService(name, app, port string) *corev1.Service {
	s := newService(app)
	s.Name = name
	s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString(port), AppProtocol: new("http")}}
	return s
}

// checkServices calls all three Services of a pod that accepts no plaintext.
func checkServices(t *testing.T, client app, n *namespace, pod string) {
	t.Helper()
	for service, want := range map[string]string{pod: pod, pod + "-web": pod, pod + "-admin": "second"} {
		a := client.waitCall("http://%s.%s/", service, n.name)
		if a.Instance != want || a.Headers.Get("X-Forwarded-Client-Cert") == "" {
			t.Errorf("Service %s: %+v answered, want %s by mTLS", service, a, want)
		}
	}
}

// checkPreStop deletes a pod, and checks the calls while the application still serves.
func (n *namespace) checkPreStop(pod string) {
	n.t.Helper()
	a := n.app(pod)
	if err := cluster.client.CoreV1().Pods(n.name).Delete(n.t.Context(), pod, metav1.DeleteOptions{}); err != nil {
		n.t.Fatal(err)
	}
	n.wait("the call of the preStop hook", func() error {
		var counts map[string]int64
		if err := a.try(http.MethodGet, "/counts", nil, &counts); err != nil {
			return err
		}
		if counts["/stopping"] != 1 {
			return fmt.Errorf("there are %d: %v", counts["/stopping"], counts)
		}
		return nil
	})
}

// TestJob has a Job that completes although it has a native sidecar.
func TestJob(t *testing.T) {
	t.Parallel()
	n := newMesh(t, "STRICT")
	n.create(newPod("peer", "node1"), newService("peer"))
	n.waitReady("peer")
	n.app("peer").waitCall("http://peer.%s/", n.name)
	n.create(&batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"}, ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec: batchv1.JobSpec{BackoffLimit: new(int32(0)), Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, NodeName: "node2",
			Containers: []corev1.Container{{Name: "app", Image: appImage, Args: []string{"--call=http://peer/"}}},
		}}},
	})
	n.wait("the end of the job", func() error {
		j, err := cluster.client.BatchV1().Jobs(n.name).Get(n.t.Context(), "job", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if j.Status.Succeeded != 1 {
			return fmt.Errorf("it is %+v", j.Status)
		}
		return nil
	})
}

// TestHostNetwork creates a pod on the host network: the webhook does not change it, and its creator
// gets a warning.
func TestHostNetwork(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	p := newPod("host", "node2")
	p.Spec.HostNetwork = true
	p.Spec.Containers[0].Args = []string{"--http=:18080"}
	p.Spec.Containers[0].ReadinessProbe.HTTPGet.Port = intstr.FromInt32(18080)
	if warnings := n.create(p); len(warnings) > 0 {
		t.Errorf("warnings %q: the webhook was asked", warnings)
	}
	n.waitReady("host")
	if got := n.pod("host"); container(got, mesh.ContainerSidecar) != nil || container(got, mesh.ContainerInit) != nil {
		t.Errorf("the pod has a sidecar: %s", summary(got))
	}
	n.waitEvent("host", "InjectionWarning", "spec.hostNetwork")
}

// TestWarnings has warnings about the pods of a Deployment, in the places where users look.
func TestWarnings(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	d := newDeployment("web", 1, nil)
	d.Spec.Template.Annotations["kuma.io/no-such-annotation"] = "x"
	n.create(d)
	n.waitEvent("web", "InjectionWarning", "kuma.io/no-such-annotation")
}

// TestReadinessGate has a pod whose readiness gate is False: it gets no traffic.
func TestReadinessGate(t *testing.T) {
	t.Parallel()
	n := newMesh(t, "STRICT")
	gated, other := newPod("gated", "node2"), newPod("other", "node2")
	gated.Labels["app"], other.Labels["app"] = "busybox", "busybox"
	const gate = corev1.PodConditionType("sonde.test/open")
	gated.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
	s := newService("busybox")
	s.Spec.Ports[0].Port = 6851
	n.create(gated, other, newPod("client", "node1"), s)
	n.waitReady("other", "client")
	n.waitPod("gated", "running, not Ready", func(p *corev1.Pod) error {
		if c := status(p, "app"); !c.Ready || isReady(p) == nil {
			return errors.New(summary(p))
		}
		return nil
	})
	client := n.app("client")
	n.waitEndpointReady("gated", false)
	n.waitInstances(client, "other")
	pass(t, 5*time.Second) // it stays without traffic
	if err := client.instances("other"); err != nil {
		t.Error(err)
	}
	p := n.pod("gated")
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: gate, Status: corev1.ConditionTrue})
	if _, err := cluster.client.CoreV1().Pods(n.name).UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.waitReady("gated")
	n.waitInstances(client, "gated", "other")
}

// TestRestricted has a namespace in which Pod Security rejects kuma-init.
func TestRestricted(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, map[string]string{"kuma.io/sidecar-injection": "enabled", "pod-security.kubernetes.io/enforce": "restricted"})
	p := newPod("web", "node2")
	p.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: new(true), RunAsUser: new(int64(1000)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	warnings, err := n.tryCreate(p)
	if err == nil || !strings.Contains(err.Error(), `container "kuma-init" must not include "NET_ADMIN"`) {
		t.Errorf("error %v, want Pod Security's about kuma-init", err)
	}
	if !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, n.name) && strings.Contains(w, "NET_ADMIN") }) {
		t.Errorf("warnings %q, want one with the reason", warnings)
	}
	p.Labels[join] = "disabled"
	if _, err := n.tryCreate(p); err != nil {
		t.Errorf("without a sidecar: %v", err)
	}
}

// counts returns the number of the application's requests by path.
func (a app) counts() map[string]int64 {
	a.t.Helper()
	var c map[string]int64
	a.do(http.MethodGet, "/counts", nil, &c)
	return c
}
