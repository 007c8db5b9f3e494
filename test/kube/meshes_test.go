package kube

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
)

// A pod that has come past the webhook joins no mesh that its namespace does not allow, and joins once it does.
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
		poll(t, fmt.Sprintf("a refusal by %q", meshes), func(ctx context.Context) error {
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
	poll(t, "the pod to join", join)
}
