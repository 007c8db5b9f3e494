package kube

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
)

// wayToAPIServer returns the URL of a proxy to the API server. After cut, the watch of namespaces ends and cannot be
// opened again, as for a while after an outage; all other requests pass.
func wayToAPIServer(t *testing.T) (address string, cut func()) {
	t.Helper()
	server, err := url.Parse(cluster.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // both ends belong to this test
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(server)
			r.Out.Header.Set("Authorization", "Bearer "+cluster.Config.BearerToken) // clients do not send it without TLS
		},
		Transport: transport, FlushInterval: -1,
	}
	open, cut := context.WithCancel(t.Context())
	way := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/namespaces" && !r.URL.Query().Has("fieldSelector") {
			if open.Err() != nil {
				http.Error(w, "not heard", http.StatusServiceUnavailable)
				return
			}
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			defer context.AfterFunc(open, cancel)()
			r = r.WithContext(ctx)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		way.Close()
		transport.CloseIdleConnections()
	})
	return way.URL, cut
}

// After an outage, the webhook may get pods of namespaces whose changes the control plane has not seen: it decides by
// the namespaces' current labels.
func TestNamespacesUnseen(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "unseen-enabled", nil)
	namespace(t, client, "unseen-disabled", map[string]string{mesh.LabelInjection: "enabled"})
	address, cut := wayToAPIServer(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(kubeconfig, address, cluster.Config.BearerToken); err != nil {
		t.Fatal(err)
	}
	p := startPlane(t, "a", func(o *controlplane.Options) {
		o.Kubernetes.Kubeconfig, o.Kubernetes.WebhookConfiguration = kubeconfig, configurationName
	})
	installWebhook(t, client, p)
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	cut()
	p.says(t, "/readyz?verbose", "\n[!]store warning: unreachable for ")

	for name, value := range map[string]string{"unseen-enabled": "enabled", "unseen-disabled": "disabled"} {
		patch := []byte(`{"metadata": {"labels": {"` + mesh.LabelInjection + `": "` + value + `"}}}`)
		if _, err := client.CoreV1().Namespaces().Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	namespace(t, client, "unseen-new", map[string]string{mesh.LabelInjection: "enabled"})
	for name, want := range map[string]bool{"unseen-enabled": true, "unseen-disabled": false, "unseen-new": true} {
		pod, err := client.CoreV1().Pods(name).Create(t.Context(), podOf(name, "web", nil), metav1.CreateOptions{})
		if err != nil {
			t.Errorf("pod of %s: %v", name, err)
			continue
		}
		if hasSidecar(pod) != want {
			t.Errorf("pod of %s has a sidecar: %t, want %t", name, hasSidecar(pod), want)
		}
	}
}
