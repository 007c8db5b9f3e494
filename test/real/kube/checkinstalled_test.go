package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/test/must"
)

// checkedPlane starts a control plane as the chart installs it, with a pod and a webhook.
func checkedPlane(t *testing.T, client *kubernetes.Clientset, options ...func(*controlplane.Options)) (*person, *kubelet, *plane) {
	t.Helper()
	deleteMeshes(t)
	installSondectl(t, client)
	p := startPlane(t, "a", append(options, func(o *controlplane.Options) { o.Kubernetes.WebhookConfiguration = configurationName })...)
	installWebhook(t, client, p)
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	k := startKubelet(t, client)
	k.run(t, systemNamespace, "sonde-cp-a", "sonde", p)
	namespace(t, client, "default", nil)
	return administrator(t), k, p
}

// The control plane has exactly the rights of the chart, and the check names each removed right.
func TestCheckRightsOfThePlane(t *testing.T) {
	client := newClient(t)
	p, _, _ := checkedPlane(t, client)
	const good = "[ok]   rights of the control plane: service account sonde-cp has all rights\n"
	p.says("rights of the control plane", good, "--installed")
	manifests, err := chart.Render(t.Context(), "--set=retryAfterOutage=false")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range manifests {
		if m.Name != account || m.Kind != "ClusterRole" && m.Kind != "Role" {
			continue
		}
		var role rbacv1.Role
		if err := yaml.Unmarshal([]byte(m.YAML), &role); err != nil {
			t.Fatal(err)
		}
		want = append(want, rightsIn(role.Rules)...)
	}
	slices.Sort(want)
	roles := client.RbacV1()
	bound, err := roles.RoleBindings(systemNamespace).Get(t.Context(), account, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	restore := func() {
		bound.ResourceVersion, bound.UID = "", ""
		if _, err := roles.RoleBindings(systemNamespace).Create(context.Background(), bound, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	}
	t.Run("taken away", func(t *testing.T) {
		unbind(t, client, account)
		if err := roles.RoleBindings(systemNamespace).Delete(t.Context(), account, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		defer restore()
		must.Poll(t, "all rights to be missing", func(context.Context) error {
			if missing := p.missing("rights of the control plane", "--installed"); !slices.Equal(missing, want) {
				return fmt.Errorf("missing %q\nwant %q", missing, want)
			}
			return nil
		})
	})
	p.says("rights of the control plane", good, "--installed")
}

// rightsIn returns the rights of rules in sondectl's format.
func rightsIn(rules []rbacv1.PolicyRule) []string {
	var all []string
	for _, r := range rules {
		for _, resource := range r.Resources {
			if r.APIGroups[0] != "" {
				name, sub, is := strings.Cut(resource, "/")
				if resource = name + "." + r.APIGroups[0]; is {
					resource += "/" + sub
				}
			}
			if len(r.ResourceNames) > 0 {
				resource += " named " + r.ResourceNames[0]
			}
			for _, verb := range r.Verbs {
				all = append(all, verb+" "+resource)
			}
		}
	}
	return all
}

// The check finds out whether the API server reaches the webhook by a dry run that creates a pod.
func TestCheckWebhook(t *testing.T) {
	client := newClient(t)
	p, _, plane := checkedPlane(t, client)
	const good = "[ok]   webhook: dry run: a pod in namespace default is injected\n"
	p.says("webhook", good, "--installed")
	if pods, err := client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); err != nil || len(pods.Items) > 0 {
		t.Errorf("the check has made %d pods, %v", len(pods.Items), err)
	}
	p.says("webhook", `
[warn] webhook: not checked: cannot create a pod in namespace nowhere: namespaces "nowhere" not found
       do: set --pod-namespace to a namespace where you have the right to create pods, and where Pod Security allows NET_ADMIN
`, "--installed", "--pod-namespace=nowhere")

	api := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	calls := func(change func(*admissionv1.MutatingWebhook)) {
		t.Helper()
		is, err := api.Get(t.Context(), configurationName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range is.Webhooks {
			change(&is.Webhooks[i])
		}
		if _, err := api.Update(t.Context(), is, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const (
		away  = `[fail] webhook: the API server does not reach the webhook, so pods that need injection cannot be created: Internal error occurred: failed calling webhook "pod.inject.sonde.dev": failed to call webhook: `
		doing = `
       do: check that replicas are Ready, that firewalls and NetworkPolicies let API servers reach port 5443 of namespace sonde-system, and that the caBundle of MutatingWebhookConfiguration sonde matches its certificate
`
	)
	var url *string
	calls(func(w *admissionv1.MutatingWebhook) {
		url = w.ClientConfig.URL
		w.ClientConfig.URL, w.TimeoutSeconds = new("https://127.0.0.1:1/inject"), new(int32(1))
	})
	p.says("webhook", away+`Post "https://127.0.0.1:1/inject?timeout=1s": dial tcp 127.0.0.1:1: connect: connection refused`+doing, "--installed")
	// The check retries: the second call reaches the webhook, as may happen right after an
	// installation.
	at := must.FreeAddresses(t, 1)[0]
	calls(func(w *admissionv1.MutatingWebhook) {
		w.ClientConfig.URL, w.TimeoutSeconds = new("https://"+at+"/inject"), new(int32(10))
	})
	p.says("webhook", away+fmt.Sprintf(`Post "https://%s/inject?timeout=10s": dial tcp %[1]s: connect: connection refused`, at)+doing, "--installed")
	forwardTo(t, at, plane.webhook, 1)
	if is := p.lines("webhook", "--installed"); is != good {
		t.Errorf("a webhook that is reachable at the retry: lines\n%s\nwant\n%s", is, good)
	}
	calls(func(w *admissionv1.MutatingWebhook) {
		w.ClientConfig.Service = &admissionv1.ServiceReference{Namespace: systemNamespace, Name: "sonde-cp-check", Port: new(int32(5443)), Path: new("/inject")}
		w.ClientConfig.URL, w.TimeoutSeconds = nil, new(int32(1))
	})
	p.says("webhook", away+`Post "https://sonde-cp-check.sonde-system.svc:5443/inject?timeout=1s": service "sonde-cp-check" not found`+doing, "--installed")
	_, err := client.CoreV1().Services(systemNamespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "sonde-cp-check"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 5443}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.CoreV1().Services(systemNamespace).Delete(context.Background(), "sonde-cp-check", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	must.Poll(t, "the refusal of a Service without endpoints", func(context.Context) error { // without kube-proxy, the error is from the network
		is := p.lines("webhook", "--installed")
		if !strings.HasPrefix(is, away+`Post "https://sonde-cp-check.sonde-system.svc:5443/inject?timeout=1s": `) || !strings.HasSuffix(is, doing) {
			return fmt.Errorf("lines\n%s", is)
		}
		return nil
	})
	calls(func(w *admissionv1.MutatingWebhook) {
		w.ClientConfig.URL, w.ClientConfig.Service, w.TimeoutSeconds = url, nil, new(int32(20))
	})
	p.says("webhook", good, "--installed")
}

// The webhook's Service has no endpoint, and then has one again.
func TestCheckWebhookService(t *testing.T) {
	client := newClient(t)
	p, _, _ := checkedPlane(t, client)
	p.says("webhook Service", `
[fail] webhook Service: Service sonde-cp in namespace sonde-system has no Ready endpoint: the API server cannot call the webhook, so pods that need injection cannot be created
       do: see kubectl -n sonde-system get pods,endpointslices: the Service's selector must match Ready replicas
`, "--installed")
	slices := client.DiscoveryV1().EndpointSlices(systemNamespace)
	_, err := slices.Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "sonde-cp-check", Labels: map[string]string{discoveryv1.LabelServiceName: "sonde-cp"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := slices.Delete(context.Background(), "sonde-cp-check", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	p.says("webhook Service", "[ok]   webhook Service: 1 endpoint Ready\n", "--installed")
	p.says("control plane", "[ok]   control plane: a replica answers\n", "--installed")
	p.says("control planes", "[ok]   control planes: release \"sonde\" in namespace \"sonde-system\" alone\n", "--installed")
	p.says("serving CA", "[ok]   serving CA: no proxy has an old CA\n", "--installed")
}

// The webhook's certificate, which another program renews, expires within the hour; then it is renewed.
func TestCheckCertificateNearItsEnd(t *testing.T) {
	client := newClient(t)
	directory := t.TempDir()
	from := time.Now().Add(-10 * time.Minute).Truncate(time.Second)
	writeCertificate(t, directory, from)
	p, _, _ := checkedPlane(t, client, func(o *controlplane.Options) { o.Kubernetes.WebhookCertDir = directory })
	is := p.lines("certificates", "--installed")
	want := fmt.Sprintf("[warn] certificates: the CA of the webhook (caBundle of MutatingWebhookConfiguration sonde) ends at %s, in ", from.Add(time.Hour).UTC().Format(time.RFC3339))
	const after = ": then pods that need injection cannot be created\n       do: renew it with the Secret that the chart's webhook.certificate.secretName names\n"
	if !strings.HasPrefix(is, want) || !strings.HasSuffix(is, after) {
		t.Errorf("lines\n%s\nwant %s…%s", is, want, after)
	}
	writeCertificate(t, directory, time.Now().AddDate(0, 0, 60))
	must.Poll(t, "the renewed certificate", func(context.Context) error {
		if is := p.lines("certificates", "--installed"); !strings.HasPrefix(is, "[ok]   certificates: ") {
			return fmt.Errorf("lines\n%s", is)
		}
		return nil
	})
}

// A workload with a sidecar uses a port of the sidecar; another workload has no sidecar.
func TestCheckPods(t *testing.T) {
	client := newClient(t)
	p, _, _ := checkedPlane(t, client)
	namespace(t, client, "check-pods", nil)
	run := func(name string, port int32) {
		t.Helper()
		pod := podOf("check-pods", name, func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: port}} })
		if _, err := client.CoreV1().Pods("check-pods").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	run("probed", 9000)
	run("redirected", 15006)
	label := func(value string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata": {"labels": {%q: %q}}}`, mesh.LabelOwnInjection, value)
		if _, err := client.CoreV1().Namespaces().Patch(t.Context(), "check-pods", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label("enabled")
	t.Cleanup(func() {
		if err := client.CoreV1().Pods("check-pods").DeleteCollection(context.Background(), metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	})
	has := func(name, text string) {
		t.Helper()
		if is := p.lines(name, "--installed"); !strings.Contains(is, text) {
			t.Errorf("lines\n%s\nwant %s", is, text)
		}
	}
	has("ports", "workloads declare port 9000: their sidecars will use a port from 9001 to 9020 for probes\n       Pod/check-pods/probed: container app has port 9000\n")
	has("ports", "[fail] ports: workloads that ask for a sidecar declare its ports: the webhook will reject their next pods\n       Pod/check-pods/redirected: container app has port 15006\n")
	has("pods", "[fail] pods: pods should have a sidecar but have none")
	label("disabled")
	if is := p.lines("pods", "--installed"); strings.Contains(is, "check-pods") {
		t.Errorf("lines\n%s\nwant nothing of pods whose namespace asks for no sidecar", is)
	}
}
