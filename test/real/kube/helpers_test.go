package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/objects"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// systemNamespace is the control plane's namespace.
const systemNamespace = "sonde-system"

func newClient(t testing.TB) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// namespace creates a namespace with the service account of its pods. Each test has its own, because a deletion never
// ends without controllers.
func namespace(t testing.TB, client kubernetes.Interface, name string, labels map[string]string) {
	t.Helper()
	_, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	_, err = client.CoreV1().ServiceAccounts(name).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// plane is a control plane, in this process or in a benchmark's own process.
type plane struct {
	webhook, health, agents, admin, peers string // host:port
	stop                                  func()
}

// newPlane returns a control plane that does not run yet, with ports that are reserved until the
// test ends.
func newPlane(t testing.TB) *plane {
	t.Helper()
	at := must.FreeAddresses(t, 5)
	return &plane{webhook: at[0], health: at[1], agents: at[2], admin: at[3], peers: at[4]}
}

// startPlane starts a control plane and waits until it is ready. The control plane ends with the test, or
// when its stop is called.
func startPlane(t *testing.T, replica string, options ...func(*controlplane.Options)) *plane {
	t.Helper()
	p := launchPlane(t, replica, options...)
	must.Poll(t, "the readiness of "+replica, p.ready)
	return p
}

func launchPlane(t *testing.T, replica string, options ...func(*controlplane.Options)) *plane {
	t.Helper()
	namespace(t, newClient(t), systemNamespace, nil)
	p := newPlane(t)
	o := controlplane.Options{
		Store: "kubernetes", BindAddress: "127.0.0.1", Version: "test", WebhookPort: portOf(t, p.webhook), HealthPort: portOf(t, p.health),
		AgentsPort: portOf(t, p.agents), AdminPort: portOf(t, p.admin), PeerPort: portOf(t, p.peers),
		Logger:     slog.New(slog.NewTextHandler(t.Output(), nil)),
		Kubernetes: controlplane.Kubernetes{Kubeconfig: cluster.Kubeconfig, Namespace: systemNamespace, Replica: replica},
	}
	for _, option := range options {
		option(&o)
	}
	cp, err := controlplane.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := detached(t)
	done := make(chan error, 1)
	go func() { done <- cp.Run(ctx) }()
	ended := false
	p.stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() of %s = %v", replica, err)
		}
	}
	t.Cleanup(p.stop)
	return p
}

// detached returns a context that does not end with the test, for goroutines that must end in
// order.
func detached(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithCancel(context.WithoutCancel(t.Context()))
}

// portOf returns the port of host:port.
func portOf(t testing.TB, address string) uint16 {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	return uint16(n)
}

// ready returns an error unless the control plane is ready.
func (p *plane) ready(ctx context.Context) error { return p.healthy(ctx, "/readyz") }

func (p *plane) healthy(ctx context.Context, path string) error {
	_, err := p.get(ctx, path)
	return err
}

// unkept closes each connection after its request, so that no connection outlives its test.
var unkept = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// get returns the response of the health server, and an error if the status is not OK.
func (p *plane) get(ctx context.Context, path string) (string, error) {
	return harness.Get(ctx, unkept, "http://"+p.health+path)
}

// apply creates an object of group sonde.dev; use namespace "" for a Mesh.
func apply(t *testing.T, namespace, resource, yaml string) {
	t.Helper()
	if _, err := cluster.Do(t.Context(), http.MethodPost, sondePath(namespace, resource)+"?fieldValidation=Strict", "application/yaml", yaml); err != nil {
		t.Fatal(err)
	}
}

func sondePath(namespace, resource string) string {
	if namespace != "" {
		namespace = "/namespaces/" + namespace
	}
	return "/apis/sonde.dev/v1alpha1" + namespace + "/" + resource
}

// deleteMeshes deletes all Meshes at the end of the test, because they are cluster-scoped.
func deleteMeshes(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		forgetDefaultMesh(t)
		if _, err := cluster.Do(context.Background(), http.MethodDelete, sondePath("", "meshes"), "", ""); err != nil {
			t.Error(err)
		}
	})
}

// forgetDefaultMesh makes the next control plane create the Mesh default again.
func forgetDefaultMesh(t testing.TB) {
	t.Helper()
	for _, name := range []string{objects.DefaultMeshMade, "sonde-ca-" + mesh.DefaultMesh} {
		err := newClient(t).CoreV1().Secrets(systemNamespace).Delete(context.Background(), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
}

// accepted waits until the Accepted condition has this status and reason, and this text in its
// message.
func accepted(t testing.TB, path, status, reason, text string) {
	t.Helper()
	must.Poll(t, path+" to be "+reason, func(ctx context.Context) error {
		object, err := cluster.Do(ctx, http.MethodGet, path, "", "")
		if err != nil {
			return err
		}
		for _, want := range []string{`"type":"Accepted"`, `"status":"` + status + `"`, `"reason":"` + reason + `"`, text} {
			if !strings.Contains(object, want) {
				return fmt.Errorf("no %s in %s", want, object)
			}
		}
		return nil
	})
}
