package kube

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/test/must"
)

// secret returns the data of a Secret of the control plane.
func secret(t testing.TB, client kubernetes.Interface, name string) []byte {
	t.Helper()
	s, err := client.CoreV1().Secrets(systemNamespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range s.Data {
		return data
	}
	return nil
}

// podToken returns a projected token of a pod with the service account default.
func podToken(t *testing.T, client kubernetes.Interface, pod *corev1.Pod, audience string) string {
	t.Helper()
	r, err := client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			Audiences:      []string{audience},
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status.Token
}

// dial connects to a port of the control plane.
func (p *plane) dial(t testing.TB, client kubernetes.Interface, address string) *grpc.ClientConn {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret(t, client, "sonde-serving-ca.crt"))
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: roots, ServerName: mesh.ServingName, MinVersion: tls.VersionTLS13,
	})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// adminClient returns a client of the admin API, and a context with the admin token.
func (p *plane) adminClient(t testing.TB, client kubernetes.Interface) (adminv1.AdminServiceClient, context.Context) {
	t.Helper()
	token := strings.TrimSpace(string(secret(t, client, "sonde-admin-token")))
	return adminv1.NewAdminServiceClient(p.dial(t, client, p.admin)), metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
}

// An agent outside of the cluster joins with a token of the control plane, for a Dataplane that a user wrote. A pod
// cannot join with such a token.
func TestJoinFromOutside(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "outside", nil)
	p := startPlane(t, "a")
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	apply(t, "outside", "dataplanes", `{apiVersion: sonde.dev/v1alpha1, kind: Dataplane, metadata: {name: vm}, spec: {networking: {address: 10.0.0.1, inbound: [{port: 80, servicePort: 8080, tags: {kuma.io/service: web}}]}}}`)
	admin, ctx := p.adminClient(t, client)
	agent := agentv1.NewAgentServiceClient(p.dial(t, client, p.agents))
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, ca.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	token := func(name string) string {
		t.Helper()
		r, err := admin.GenerateDataplaneToken(ctx, &adminv1.GenerateDataplaneTokenRequest{
			Mesh: "default", Name: name, Workload: "web", ValidFor: durationpb.New(time.Hour),
		})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetToken()
	}
	join := func(name, token string) (*agentv1.JoinResponse, error) {
		return agent.Join(t.Context(), &agentv1.JoinRequest{Mesh: "default", Name: name, Token: token, Csr: csr, ControlPlaneAddress: "127.0.0.1:5678"})
	}
	outside, pod := token("vm.outside"), token("pod.outside")
	must.Poll(t, "the virtual machine to join", func(context.Context) error {
		r, err := join("vm.outside", outside)
		if err != nil {
			return err
		}
		c, err := x509.ParseCertificate(r.GetIdentity().GetCertificateChain()[0])
		if err == nil && c.URIs[0].String() != "spiffe://default.sonde.internal/workload/web" {
			err = fmt.Errorf("identity %s", c.URIs[0])
		}
		return err
	})
	uid := injected(t, client, "outside", "pod", "10.1.0.9").UID
	must.Poll(t, "a refusal for the pod", func(context.Context) error {
		if _, err := join("pod.outside", pod); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), string(uid)) {
			return fmt.Errorf("Join() = %w", err)
		}
		return nil
	})
}
