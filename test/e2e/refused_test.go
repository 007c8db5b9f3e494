//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// lacks returns an error unless a text contains all words.
func lacks(text string, words ...string) error {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return fmt.Errorf("%q does not contain %q", text, word)
		}
	}
	return nil
}

// TestPodsRefused has pods that cannot have a sidecar: the rejection names the problem.
func TestPodsRefused(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	annotation := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations[key] = value }
	}
	named := func(key string) string { return fmt.Sprintf("metadata.annotations[%q]", key) }
	port := func(number int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: number}} }
	}
	for name, test := range map[string]struct {
		edit  []func(*corev1.Pod)
		words []string
	}{
		"virtual-port":  {[]func(*corev1.Pod){port(9000), annotation("kuma.io/virtual-probes-port", "9000")}, []string{named("kuma.io/virtual-probes-port"), "9000", "containers[app].ports"}},
		"reserved-port": {[]func(*corev1.Pod){port(15006)}, []string{"containers[app].ports", "15006"}},
		"switch":        {[]func(*corev1.Pod){annotation("kuma.io/sidecar-injection", "maybe")}, []string{named("kuma.io/sidecar-injection"), "maybe", "enabled or disabled"}},
		"probes":        {[]func(*corev1.Pod){annotation("kuma.io/virtual-probes", "perhaps")}, []string{named("kuma.io/virtual-probes"), "perhaps", "enabled or disabled"}},
		"probes-port":   {[]func(*corev1.Pod){annotation("kuma.io/virtual-probes-port", "70000")}, []string{named("kuma.io/virtual-probes-port"), "70000", "65535"}},
		"range":         {[]func(*corev1.Pod){annotation("kuma.io/virtual-probes-port-range", "9020-9000")}, []string{named("kuma.io/virtual-probes-port-range"), "9020-9000"}},
		"inbound":       {[]func(*corev1.Pod){annotation("traffic.kuma.io/exclude-inbound-ports", "http")}, []string{named("traffic.kuma.io/exclude-inbound-ports"), "http"}},
		"outbound":      {[]func(*corev1.Pod){annotation("traffic.kuma.io/exclude-outbound-ports", "0")}, []string{named("traffic.kuma.io/exclude-outbound-ports"), `"0"`}},
		"drain":         {[]func(*corev1.Pod){annotation("kuma.io/sidecar-drain-time", "soon")}, []string{named("kuma.io/sidecar-drain-time"), "soon"}},
		"server-first":  {[]func(*corev1.Pod){annotation("sonde.dev/server-first-ports", "x")}, []string{named("sonde.dev/server-first-ports"), `"x"`}},
		"mesh":          {[]func(*corev1.Pod){annotation("kuma.io/mesh", "no-such-mesh")}, []string{"no-such-mesh"}},
		"two at once":   {[]func(*corev1.Pod){annotation("kuma.io/virtual-probes", "1"), annotation("kuma.io/sidecar-drain-time", "2")}, []string{named("kuma.io/virtual-probes"), named("kuma.io/sidecar-drain-time")}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPod("refused", "node1")
			for _, edit := range test.edit {
				edit(p)
			}
			_, err := (&namespace{t: t, name: n.name}).tryCreate(p)
			if err == nil {
				t.Fatal("the object was accepted")
			}
			if err := lacks(err.Error(), test.words...); err != nil {
				t.Error(err)
			}
		})
	}
	p := newPod("moved", "node1")
	port(9000)(p)
	n.create(p)
	if got := n.pod("moved").Annotations[mesh.AnnotationVirtualProbesPort]; got != "9001" {
		t.Errorf("the virtual port of a pod that uses 9000 is %q, want the next free one", got)
	}
}

// TestMeshesRefused has invalid Meshes: each violation is named.
func TestMeshesRefused(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, outside)
	for name, test := range map[string]struct {
		mtls  string
		words []string
	}{
		"enabledBackend": {`{enabledBackend: b, backends: [{name: a, type: builtin}]}`, []string{"mtls.enabledBackend", `"b"`}},
		"two of one name": {
			`{enabledBackend: a, backends: [{name: a, type: builtin}, {name: a, type: builtin}]}`, []string{"mtls.backends[1].name", `"a"`, "unique"},
		},
		"mode":          {`{enabledBackend: a, backends: [{name: a, type: builtin, mode: strict}]}`, []string{"mtls.backends[0].mode", `"strict"`, "STRICT"}},
		"unknown field": {`{enabledBackend: a, backend: []}`, []string{"spec.mtls.backend"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := (&namespace{t: t, name: n.name}).tryCreate(fmt.Sprintf("apiVersion: sonde.dev/v1alpha1\nkind: Mesh\nmetadata: {name: refused}\nspec: {mtls: %s}\n", test.mtls))
			if err == nil {
				t.Fatal("the object was accepted")
			}
			if err := lacks(err.Error(), test.words...); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMeshInUse deletes a Mesh with pods: the deletion is rejected.
func TestMeshInUse(t *testing.T) {
	t.Parallel()
	n := newMesh(t, "PERMISSIVE")
	n.create(newPod("web", "node1"))
	n.waitReady("web")
	client, err := newClient(func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	mapping, err := cluster.mapper.RESTMapping(meshKind)
	if err != nil {
		t.Fatal(err)
	}
	err = client.Resource(mapping.Resource).Delete(t.Context(), n.name, metav1.DeleteOptions{})
	if err == nil {
		t.Fatal("the Mesh was deleted")
	}
	if err := lacks(err.Error(), n.name, "in use"); err != nil {
		t.Error(err)
	}
}

// TestTokensRefused joins with invalid tokens: of another audience, of no pod, or of another pod.
func TestTokensRefused(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	n.create(newPod("web", "node1"), newPod("gone", "node1"))
	n.waitReady("web", "gone")
	web, gone := n.pod("web"), n.pod("gone")
	tokenOfGone := n.token(gone, mesh.TokenAudience)
	n.deletePod("gone")

	join := n.joiner(web.Annotations[mesh.AnnotationControlPlaneCA])
	if err := join("web", n.token(web, mesh.TokenAudience)); err != nil {
		t.Errorf("the pod's own token: %v", err)
	}
	refused := func(name, pod, token string, words ...string) {
		t.Helper()
		err := join(pod, token)
		if err == nil {
			t.Errorf("%s: the token was accepted", name)
		} else if err := lacks(err.Error(), words...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	refused("another audience", "web", n.token(web, "https://kubernetes.default.svc"), "Unauthenticated")
	refused("no pod", "web", n.token(nil, mesh.TokenAudience), "Unauthenticated", "not bound to a pod")
	refused("of a deleted pod", "gone", tokenOfGone)
	refused("of another pod", "gone", n.token(web, mesh.TokenAudience), "web."+n.name, "gone."+n.name)
	n.waitEvent("web", "JoinRefused", "gone."+n.name)
	n.create(newPod("gone", "node1"))
	n.waitReady("gone")
	refused("of the pod that had the name before", "gone", tokenOfGone)
}

// token returns a token for the service account of a pod.
func (n *namespace) token(pod *corev1.Pod, audience string) string {
	n.t.Helper()
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: new(int64(3600))}}
	if pod != nil {
		r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	r, err := cluster.client.CoreV1().ServiceAccounts(n.name).CreateToken(n.t.Context(), "default", r, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return r.Status.Token
}

// joiner returns a function that joins like an agent, for a pod of the namespace.
func (n *namespace) joiner(ca string) func(pod, token string) error {
	n.t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(ca)) {
		n.t.Fatalf("the CA is %q", ca)
	}
	s, err := cluster.client.CoreV1().Services(systemNamespace).Get(n.t.Context(), "sonde-cp", metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	address := mesh.JoinHostPort(s.Spec.ClusterIP, mesh.PortAgents)
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: roots, ServerName: mesh.ServingName, MinVersion: tls.VersionTLS13,
	})))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		n.t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		n.t.Fatal(err)
	}
	return func(pod, token string) error {
		ctx, cancel := context.WithTimeout(n.t.Context(), 20*time.Second)
		defer cancel()
		_, err := agentv1.NewAgentServiceClient(conn).Join(ctx, &agentv1.JoinRequest{
			Mesh: "default", Name: pod + "." + n.name, Token: token, Csr: csr, Version: &agentv1.Version{Sonde: "e2e", Envoy: "1.40.0"},
			ControlPlaneAddress: address,
		})
		return err
	}
}
