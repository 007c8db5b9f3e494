package kube

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/test/must"
	"github.com/sonde-mesh/sonde/webhook"
)

// times matches the parts of why's output that differ between runs.
var times = regexp.MustCompile(`\d\d:\d\d:\d\dZ \([^)]*\)| \((for )?[0-9smh]+( ago)?\)|pod UID [0-9a-f-]+`)

// why waits until sondectl why prints these first lines for a pod of namespace why, without times.
func (p *person) why(pod, want string) {
	p.Helper()
	p.whyIn("why", pod, want)
}

func (p *person) whyIn(namespace, pod, want string) {
	p.Helper()
	must.Poll(p, "why "+pod, func(context.Context) error {
		stdout, stderr, code := p.calls("why", "pod/"+pod, "-n", namespace)
		if got := times.ReplaceAllString(stdout, "T"); code != 0 || !strings.HasPrefix(got, want) {
			return fmt.Errorf("exit code %d, stderr %q, stdout\n%s\nwant\n%s", code, stderr, got, want)
		}
		return nil
	})
}

// runs creates a pod with a sidecar, with a status as from a kubelet.
func runs(t *testing.T, client kubernetes.Interface, name, address string, change func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	pod := podOf("why", name, func(p *corev1.Pod) { p.Labels = map[string]string{"app": name} })
	if change != nil {
		change(pod)
	}
	pod, _, err := webhook.Inject(pod, webhook.Options{})
	if err == nil {
		pod, err = client.CoreV1().Pods("why").Create(t.Context(), pod, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return setStatus(t, client, pod, address, true)
}

// setStatus writes the status of a pod whose containers run, and are ready, except perhaps for the
// sidecar.
func setStatus(t *testing.T, client kubernetes.Interface, pod *corev1.Pod, address string, ready bool) *corev1.Pod {
	t.Helper()
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}}
	add := func(list []corev1.Container) (all []corev1.ContainerStatus) {
		for _, c := range list {
			s := corev1.ContainerStatus{Name: c.Name, Ready: ready || c.Name != mesh.ContainerSidecar, Started: new(true)}
			s.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.Now()}
			if c.Name == mesh.ContainerInit {
				s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Now()}}
			}
			all = append(all, s)
		}
		return all
	}
	pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses = add(pod.Spec.InitContainers), add(pod.Spec.Containers)
	value := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[ready]
	for _, kind := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: value, LastTransitionTime: metav1.Now()})
	}
	pod, err := client.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// machineOf returns the agent of a pod as a machine.
func machineOf(t *testing.T, client kubernetes.Interface, pod *corev1.Pod) *machine {
	t.Helper()
	m := &machine{
		t: t, name: mesh.ObjectDataplane(pod.Namespace, pod.Name), process: rand.Text(), started: time.Now(), key: ca.NewKey(), roots: x509.NewCertPool(),
		token: podToken(t, client, pod, mesh.TokenAudience),
	}
	m.roots.AppendCertsFromPEM(secret(t, client, "sonde-serving-ca.crt"))
	return m
}

// told waits for an event about a pod from the control plane.
func told(t *testing.T, client kubernetes.Interface, pod *corev1.Pod, reason, note string) {
	t.Helper()
	must.Poll(t, "event "+reason, func(ctx context.Context) error { return tells(ctx, client, pod, reason, note) })
}

// tells returns an error unless such an event exists.
func tells(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, reason, note string) error {
	list, err := client.EventsV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var all []string
	for _, e := range list.Items {
		if e.Regarding.UID == pod.UID {
			all = append(all, e.Reason+": "+e.Note)
		}
	}
	if !slices.Contains(all, reason+": "+note) {
		return fmt.Errorf("events %q, want %s: %s", all, reason, note)
	}
	return nil
}

// administrator returns a user with all rights.
func administrator(t *testing.T) *person {
	t.Helper()
	p := &person{t, filepath.Join(t.TempDir(), "kubeconfig")}
	if err := cluster.WriteKubeconfig(p.kubeconfig, cluster.Config.Host, cluster.Config.BearerToken); err != nil {
		t.Fatal(err)
	}
	return p
}

// whyScene is a control plane that injects into namespace why, which has a pod without a sidecar.
type whyScene struct {
	client     *kubernetes.Clientset
	p          *plane
	kubeconfig string // of an administrator
	plain      *corev1.Pod
}

// sondectl why and an event report each problem of a pod in the same words, until it is repaired.
func TestWhyPod(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	installSondectl(t, client)
	namespace(t, client, "why", map[string]string{mesh.LabelInjection: "enabled"})
	plain, err := client.CoreV1().Pods("why").Create(t.Context(), podOf("why", "plain", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := startPlane(t, "a", func(o *controlplane.Options) { o.Kubernetes.WebhookConfiguration = configurationName })
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	startKubelet(t, client).run(t, systemNamespace, "sonde-cp-a", "sonde", p)
	s := &whyScene{client, p, administrator(t).kubeconfig, plain}
	for _, tc := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"not injected", s.notInjected},
		{"join refused", s.joinRefused},
		{"foreign token", s.foreignToken},
		{"join waits", s.joinWaits},
		{"listener refused", s.listenerRefused},
		{"drained", s.drained},
		{"beside", s.beside},
		{"which pod", s.whichPod},
		{"for programs", s.forPrograms},
	} {
		t.Run(tc.name, tc.run)
	}
}

func (s *whyScene) notInjected(t *testing.T) {
	client, p := s.client, s.p
	user := &person{t, s.kubeconfig}
	why := "it has no sidecar although kuma.io/sidecar-injection of namespace why asks for one: it was created before the label was set, or without the webhook"
	told(t, client, s.plain, "NotInjected", why)
	user.why("plain", "pod/plain in namespace why is not in the mesh since T: it has no sidecar: no webhook of Sonde is installed in this cluster. It is not Ready, either.")
	installWebhook(t, client, p)
	user.why("plain", "pod/plain in namespace why is not in the mesh since T: "+why+". It is not Ready, either. Pods are injected when they are created: delete it, and create it again.")
}

func (s *whyScene) joinRefused(t *testing.T) {
	client, p := s.client, s.p
	user := &person{t, s.kubeconfig}
	const address = "127.0.0.1" // the agent's address: a refused token names no pod
	pod := runs(t, client, "refused", address, nil)
	pod = setStatus(t, client, pod, address, false)
	user.why("refused", "pod/refused in namespace why is not Ready since T: its agent runs, but has never tried to join the mesh: maybe it cannot reach the control plane at sonde-cp.sonde-system.svc:5678.")
	annotate(t, client, "why", map[string]string{mesh.AnnotationMeshes: "blue"})
	m := machineOf(t, client, pod)
	conn := m.dial(p)
	must.Poll(t, "a refusal", func(ctx context.Context) error {
		if err := m.joinOver(ctx, conn); err == nil || !strings.Contains(err.Error(), mesh.AnnotationMeshes) {
			return fmt.Errorf("Join() = %w", err)
		}
		return nil
	})
	why := joinRefusal(t, client, pod)
	if !strings.Contains(why, mesh.AnnotationMeshes) {
		t.Errorf("the note of the event is %q", why)
	}
	user.why("refused", "pod/refused in namespace why is not Ready since T: "+why+".")
	annotate(t, client, "why", nil)
	m.join(p)
	m.open(p, false)
	m.connect(p)
	setStatus(t, client, pod, address, true)
	user.why("refused", "pod/refused in namespace why is well: it is in mesh default, Ready since T, and no Service of namespace why selects it.\n")
}

func (s *whyScene) foreignToken(t *testing.T) {
	client, p := s.client, s.p
	user := &person{t, s.kubeconfig}
	if _, err := client.CoreV1().ServiceAccounts("why").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := runs(t, client, "foreign", "127.0.0.1", nil)
	pod = setStatus(t, client, pod, "127.0.0.1", false)
	m := machineOf(t, client, pod)
	own := m.token
	m.token = accountToken(t, client, "why", "other", mesh.TokenAudience)
	conn := m.dial(p)
	const why = "its agent cannot join: invalid token: kubernetes.io: the token is not bound to a pod, it must be a pod's projected token"
	must.Poll(t, "the event JoinRefused", func(ctx context.Context) error { // joins before the control plane knows the pod have no event
		if err := m.joinOver(ctx, conn); err == nil {
			t.Fatal("a token of another service account joins")
		}
		return tells(ctx, client, pod, "JoinRefused", why)
	})
	user.why("foreign", "pod/foreign in namespace why is not Ready since T: "+why+".")
	m.token = own
	m.join(p)
	m.open(p, false)
	m.connect(p)
	setStatus(t, client, pod, "127.0.0.1", true)
	user.why("foreign", "pod/foreign in namespace why is well: ")
}

func (s *whyScene) joinWaits(t *testing.T) {
	client, p := s.client, s.p
	user := &person{t, s.kubeconfig}
	pod := runs(t, client, "waits", "10.7.0.4", func(p *corev1.Pod) { p.Labels[mesh.LabelMesh] = "green" })
	pod = setStatus(t, client, pod, "10.7.0.4", false)
	m := machineOf(t, client, pod)
	m.mesh = "green"
	conn := m.dial(p)
	const why = `its agent cannot join yet: mesh "green" is not known (yet)`
	must.Poll(t, "the event JoinWaiting", func(ctx context.Context) error { // half a minute after the first try
		if err := m.joinOver(ctx, conn); err == nil {
			return errors.New("the agent has joined")
		}
		return tells(ctx, client, pod, "JoinWaiting", why)
	})
	user.why("waits", "pod/waits in namespace why is not Ready since T: "+why+".")
	apply(t, "", "meshes", `{apiVersion: sonde.dev/v1alpha1, kind: Mesh, metadata: {name: green}}`)
	m.join(p)
	m.open(p, false)
	m.connect(p)
	setStatus(t, client, pod, "10.7.0.4", true)
	user.why("waits", "pod/waits in namespace why is well: it is in mesh green, ")
	if _, err := cluster.Do(t.Context(), http.MethodDelete, sondePath("", "meshes")+"/green", "", ""); err != nil {
		t.Fatal(err)
	}
	user.why("waits", "pod/waits in namespace why gets no traffic: the control plane does not have its Dataplane waits.why of mesh green.")
}

func (s *whyScene) listenerRefused(t *testing.T) {
	client, p := s.client, s.p
	user := &person{t, s.kubeconfig}
	pod := runs(t, client, "taken", "10.7.0.2", nil)
	pod = setStatus(t, client, pod, "10.7.0.2", false)
	m := machineOf(t, client, pod)
	m.join(p)
	m.open(p, false)
	const reason = "cannot bind '0.0.0.0:15006': Address already in use"
	e := m.connectRefusing(p, envoysim.Refusals{Reason: func(r *envoysim.Resource) string {
		if r.Key.Name == "inbound:capture" {
			return reason
		}
		return ""
	}})
	why := "its Envoy refuses listener inbound:capture: " + reason
	told(t, client, pod, "ListenerRefused", why)
	user.why("taken", "pod/taken in namespace why is not Ready since T: "+why+".")
	e.end()
	m.connect(p)
	setStatus(t, client, pod, "10.7.0.2", true)
	user.why("taken", "pod/taken in namespace why is well: it is in mesh default, Ready since T, and no Service of namespace why selects it.\n")
}

func (s *whyScene) drained(t *testing.T) {
	client, p := s.client, s.p
	user := &person{t, s.kubeconfig}
	pod := runs(t, client, "drained", "10.7.0.3", nil)
	m := machineOf(t, client, pod)
	m.join(p)
	m.open(p, false)
	m.connect(p)
	user.why("drained", "pod/drained in namespace why is well: ")
	user.sees("^pod drained drains\n$", "drain", "pod/drained", "-n", "why", "--reason", "a test")
	told(t, client, pod, "Draining", "it drains: pod is drained: a test")
	user.why("drained", "pod/drained in namespace why gets no new traffic since T: it drains: pod is drained: a test.")
	user.sees("^pod drained no longer drains\n$", "undrain", "pod/drained", "-n", "why")
	user.why("drained", "pod/drained in namespace why is well: ")
}

// beside reads the pod with the kubeconfig, and calls the control plane at an address.
func (s *whyScene) beside(t *testing.T) {
	user, directory := &person{t, s.kubeconfig}, t.TempDir()
	ask := func(address string) string {
		args := []string{"why", "pod/drained", "-n", "why", "--kubeconfig=" + s.kubeconfig, "--address=" + address}
		for flag, name := range map[string]string{"--ca-cert-file": "sonde-serving-ca.crt", "--token-file": "sonde-admin-token"} {
			file := filepath.Join(directory, name)
			if err := os.WriteFile(file, secret(t, s.client, name), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, flag+"="+file)
		}
		stdout, stderr, code := user.calls(args...)
		if code != 0 || stderr != "" {
			t.Fatalf("exit code %d, stderr %q", code, stderr)
		}
		return stdout
	}
	if is := ask(s.p.admin); !strings.HasPrefix(is, "pod/drained in namespace why is well: ") || strings.Contains(is, "Not asked") {
		t.Errorf("it says\n%s", is)
	}
	if is, want := ask("127.0.0.1:1"), "Incomplete: the control plane: no control plane at 127.0.0.1:1"; !strings.Contains(is, want) {
		t.Errorf("it prints\n%s\nwant %q", is, want)
	}
}

func (s *whyScene) whichPod(t *testing.T) {
	user := &person{t, s.kubeconfig}
	user.fails(1, `sondectl: why: pod "drainde" not found in namespace why: did you mean "drained"?`, "why", "pod/drainde", "-n", "why")
	user.fails(1, `sondectl: why: pod "drained" not found in namespace default: found in namespace why: set -n`, "why", "po/drained")
	user.fails(1, `sondectl: why: service "web" not found`, "why", "service/web")
	user.fails(2, `sondectl: why: --namespace: must only be set for pod/NAME, and "web" is a name (see sondectl why --help)`, "why", "web", "-n", "why")
	user.fails(2, `sondectl: why: --mesh: must only be set for NAME, and "pod/web" is a pod (see sondectl why --help)`, "why", "pod/web", "--mesh=default")
}

func (s *whyScene) forPrograms(t *testing.T) {
	user := &person{t, s.kubeconfig}
	stdout, stderr, code := user.calls("why", "pod/plain", "-n", "why", "-o", "json")
	var is struct {
		Namespace, Pod, State, Summary string
		Findings                       []struct {
			Cause, KeepsFrom, Text, Do, Since string
			Evidence                          []struct{ Of, Says, At string }
		}
	}
	if err := json.Unmarshal([]byte(stdout), &is); err != nil || code != 0 {
		t.Fatal(err, stderr)
	}
	if is.Pod != "plain" || is.State != "not-ready" || len(is.Findings) == 0 || is.Findings[0].Cause != "NotInjected" || is.Findings[0].KeepsFrom != "mesh" || len(is.Findings[0].Evidence) < 2 {
		t.Errorf("it is %+v", is)
	}
}

// joinRefusal waits for the event of a refused join, and returns its note.
func joinRefusal(t *testing.T, client kubernetes.Interface, pod *corev1.Pod) (note string) {
	t.Helper()
	must.Poll(t, "event JoinRefused", func(ctx context.Context) error {
		list, err := client.EventsV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.UID == pod.UID && e.Reason == "JoinRefused" {
				note = e.Note
				return nil
			}
		}
		return fmt.Errorf("%d other events", len(list.Items))
	})
	return note
}

// Without rights or without a control plane, sondectl why names what it could not check.
func TestWhyPodWithoutRights(t *testing.T) {
	client := newClient(t)
	namespace(t, client, "why", nil)
	namespace(t, client, "why-users", nil)
	runs(t, client, "lonely", "10.7.1.1", nil)
	for account, verbs := range map[string][]string{"nothing": nil, "pods": {"get"}} {
		if _, err := client.CoreV1().ServiceAccounts("why-users").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: account}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: append(verbs, "watch")}}}
		if _, err := client.RbacV1().Roles("why").Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err := client.RbacV1().RoleBindings("why").Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: account}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: account},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "why-users", Name: account}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	as := func(account string) *person {
		p := &person{t, filepath.Join(t.TempDir(), "kubeconfig")}
		token := accountToken(t, client, "why-users", account, "https://kubernetes.default.svc")
		if err := cluster.WriteKubeconfig(p.kubeconfig, cluster.Config.Host, token); err != nil {
			t.Fatal(err)
		}
		return p
	}
	const user = `User "system:serviceaccount:why-users:`
	as("nothing").fails(1, `sondectl: why: read pod/lonely: pods "lonely" is forbidden: `+user+`nothing" cannot get resource "pods" in API group "" in the namespace "why"`, "why", "pod/lonely", "-n", "why")
	as("pods").why("lonely", `pod/lonely in namespace why is well: it is in mesh default, Ready since T, and its Services could not be read.

Incomplete: read events of the pod: events is forbidden: `+user+`pods" cannot list resource "events" in API group "" in the namespace "why"

Incomplete: read Services of the namespace: services is forbidden: `+user+`pods" cannot list resource "services" in API group "" in the namespace "why"

Incomplete: the control plane: find control plane: pods is forbidden: `+user+`pods" cannot list resource "pods" in API group "" in the namespace "sonde-system"
`)
}
