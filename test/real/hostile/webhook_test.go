package hostile

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/apiserver"
	"github.com/sonde-mesh/sonde/test/cgrouptest"
	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// admissionTarget is a control plane in a cgroup, whose webhook a real API server calls.
type admissionTarget struct {
	*target
	api     *apiserver.Cluster
	webhook string // host:port
}

func newAdmissionTarget(t *testing.T) *admissionTarget {
	t.Helper()
	x := &admissionTarget{api: apiserver.ForTest(t)}
	for _, object := range []string{
		`{apiVersion: v1, kind: Namespace, metadata: {name: ` + chart.Namespace + `}}`,
		`{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {kuma.io/sidecar-injection: enabled}}}`,
	} {
		_, err := x.api.Do(t.Context(), http.MethodPost, "/api/v1/namespaces", "application/yaml", object)
		must.Do(t, err)
	}
	_, err := x.api.Do(t.Context(), http.MethodPost, "/api/v1/namespaces/shop/serviceaccounts", "application/yaml",
		`{apiVersion: v1, kind: ServiceAccount, metadata: {name: default}}`)
	must.Do(t, err)
	x.webhook = must.FreeAddresses(t, 1)[0]
	_, port, err := net.SplitHostPort(x.webhook)
	must.Do(t, err)
	manifests, err := chart.Render(t.Context())
	must.Do(t, err)
	remove, err := x.api.InstallWebhooks(t.Context(), manifests, x.webhook)
	t.Cleanup(func() { must.Do(t, remove(context.Background())) })
	must.Do(t, err)
	g := cgrouptest.NewMemory(t, controlPlaneMemory)
	confined := programs
	confined.ControlPlane = g.Program(t, programs.ControlPlane)
	x.target = &target{t: t, memory: g, roots: x509.NewCertPool(), Machine: harness.New(t, harness.Options{Programs: confined, ControlPlaneArgs: []string{
		"--store=kubernetes", "--state-dir=", "--kubeconfig=" + x.api.Kubeconfig, "--namespace=" + chart.Namespace, "--replica=a",
		"--webhook-port=" + port, "--peer-port=0", "--webhook-configuration=sonde",
	}})}
	return x
}

func webhookTLS(protocols ...string) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: protocols}
}

// admit creates a pod as a dry run.
func (x *admissionTarget) admit(ctx context.Context, pod string) error {
	answer, err := x.api.Do(ctx, http.MethodPost, "/api/v1/namespaces/shop/pods?dryRun=All", "application/json", pod)
	if err == nil && !strings.Contains(answer, "kuma-sidecar") {
		err = errors.New("the pod has no sidecar")
	}
	return err
}

// podWith returns a pod with this many environment variables.
func podWith(variables int) string {
	env := make([]string, variables)
	for i := range env {
		env[i] = fmt.Sprintf(`{"name":"VARIABLE_%d","value":"%0200d"}`, i, i)
	}
	return `{"metadata":{"name":"web"},"spec":{"containers":[{"name":"app","image":"app","env":[` + strings.Join(env, ",") +
		`],"readinessProbe":{"httpGet":{"port":8080,"path":"/"}}}]}}`
}

func (x *admissionTarget) users() []user {
	small, large := podWith(3), podWith(1500)
	const dataplane = `{"apiVersion":"sonde.dev/v1alpha1","kind":"Dataplane","metadata":{"name":"vm"},"spec":{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"servicePort":8080,"tags":{"kuma.io/service":"web"}}]}}}`
	return []user{
		{"a pod", 100 * time.Millisecond, func(ctx context.Context) error { return x.admit(ctx, small) }},
		{"a pod of 350 KiB", time.Second, func(ctx context.Context) error { return x.admit(ctx, large) }},
		{"a Dataplane", 200 * time.Millisecond, func(ctx context.Context) error {
			_, err := x.api.Do(ctx, http.MethodPost, "/apis/sonde.dev/v1alpha1/namespaces/shop/dataplanes?dryRun=All", "application/json", dataplane)
			return err
		}},
		{"a kubelet that asks /readyz", 200 * time.Millisecond, func(ctx context.Context) error {
			_, err := x.Get(ctx, "http://"+x.Health+"/readyz")
			return err
		}},
	}
}

// TestWebhook attacks the webhook's port, one attack after the other, while pods and Dataplanes are created.
// Attackers and the API server have the same address, as pods on the host network do.
func TestWebhook(t *testing.T) {
	x := newAdmissionTarget(t)
	users := x.users()
	must.Poll(t, "the first pod", func(ctx context.Context) error { return users[0].ask(ctx) })
	for _, a := range webhookAttacks(x.webhook) {
		t.Run(a.name, func(t *testing.T) { x.attack(t, users, aims{Webhook: x.webhook, Attacks: []string{a.name}}) })
	}
	x.rest(t)
}
