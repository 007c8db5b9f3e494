package kube

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/objects"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/test/must"
)

// A pod that the webhook did not see cannot join a mesh that its namespace does not allow. It joins once the
// namespace allows the mesh.
func TestMeshesOfANamespace(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "fenced", nil)
	allow := func(meshes string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata": {"annotations": {"sonde.dev/meshes": %q}}}`, meshes)
		if _, err := client.CoreV1().Namespaces().Patch(t.Context(), "fenced", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	allow("blue")
	p := startPlane(t, "a")
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	pod := injected(t, client, "fenced", "web", "10.1.0.21")
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, ca.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	agent := agentv1.NewAgentServiceClient(p.dial(t, client, p.agents))
	token := podToken(t, client, pod, mesh.TokenAudience)
	join := func(ctx context.Context) error {
		_, err := agent.Join(ctx, &agentv1.JoinRequest{Mesh: "default", Name: "web.fenced", Token: token, Csr: csr, ControlPlaneAddress: "127.0.0.1:5678"})
		return err
	}
	for _, meshes := range []string{"blue", "", "blue;default"} {
		allow(meshes)
		must.Poll(t, fmt.Sprintf("a refusal by %q", meshes), func(ctx context.Context) error {
			want := "sonde.dev/meshes"
			if meshes != "" && meshes != "blue" {
				want = meshes
			}
			if err := join(ctx); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("Join() = %w", err)
			}
			return nil
		})
	}
	allow("blue, default")
	must.Poll(t, "the pod to join", join)
}

// TestLostMesh deletes a Mesh in mode STRICT, and the record that it was created once. The mesh keeps its mode, even
// with another control plane, until a new Mesh sets another mode.
func TestLostMesh(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "lost", nil)
	path := sondePath("", "meshes") + "/default"
	mode := func(mode string) string {
		return "{apiVersion: sonde.dev/v1alpha1, kind: Mesh, metadata: {name: default}, spec: {mtls: {enabledBackend: a, backends: [{name: a, type: builtin, mode: " + mode + "}]}}}"
	}
	apply(t, "", "meshes", mode("STRICT"))
	apply(t, "lost", "dataplanes", `{apiVersion: sonde.dev/v1alpha1, kind: Dataplane, metadata: {name: vm}, spec: {networking: {address: 10.0.0.1, inbound: [{port: 80, servicePort: 8080, tags: {kuma.io/service: web}}]}}}`)
	first := startPlane(t, "first")
	first.says(t, "/readyz?verbose", "\n[+]meshes ok\n")
	if _, err := cluster.Do(t.Context(), http.MethodDelete, path, "", ""); err != nil {
		t.Fatal(err)
	}
	const lost = "\n[!]meshes warning: mesh \"default\": Mesh not found, keeping its recorded mode STRICT"
	first.says(t, "/readyz?verbose", lost)
	first.says(t, "/metrics", "\nsonde_store_problems{severity=\"error\"} 1\n")
	first.stop()
	if err := client.CoreV1().Secrets(systemNamespace).Delete(t.Context(), objects.DefaultMeshMade, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	second := startPlane(t, "second")
	second.says(t, "/readyz?verbose", lost)
	accepted(t, sondePath("lost", "dataplanes")+"/vm", "True", "Accepted", "")
	if _, err := cluster.Do(t.Context(), http.MethodGet, path, "", ""); err == nil {
		t.Error("a default Mesh was made")
	}
	apply(t, "", "meshes", mode("PERMISSIVE"))
	second.says(t, "/readyz?verbose", "\n[+]meshes ok\n")
}
