package kube

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/test/must"
)

// accountToken returns a token of a service account.
func accountToken(t testing.TB, client kubernetes.Interface, namespace, name, audience string) string {
	t.Helper()
	r, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}, ExpirationSeconds: new(int64(600))},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status.Token
}

func withToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// installSondectl creates the chart's service accounts for sondectl, with their rights.
func installSondectl(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	manifests, err := chart.Render(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	namespace(t, client, systemNamespace, nil)
	installAccounts(t, client, manifests)
	installRights(t, client, manifests)
}

// refused checks the status of a call.
func refused(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if err := differs(err, code, text); err != nil {
		t.Error(err)
	}
}

// differs returns an error unless a call failed with this status code and text.
func differs(err error, code codes.Code, text string) error {
	if s := status.Convert(err); s.Code() != code || s.Message() != text {
		return fmt.Errorf("the call returns %s %q,\nwant %s %q", s.Code(), s.Message(), code, text)
	}
	return nil
}

// RBAC of the service account of a caller's token limits its calls of the admin API. The admin token allows all
// calls.
func TestAdminAccess(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	installSondectl(t, client)
	namespace(t, client, "foreign", nil)
	p := startPlane(t, "a")
	api, byAdminToken := p.adminClient(t, client)
	must.Poll(t, "the Mesh default", func(context.Context) error {
		_, err := api.GetRotation(byAdminToken, &adminv1.GetRotationRequest{Mesh: "default"})
		return err
	})
	get := func(token string) error {
		_, err := api.ListProxies(withToken(t.Context(), token), &adminv1.ListProxiesRequest{})
		return err
	}
	change := func(token string) error {
		_, err := api.RotateCA(withToken(t.Context(), token), &adminv1.RotateCARequest{Mesh: "default"})
		return err
	}
	reader, admin := accountToken(t, client, systemNamespace, "sondectl", mesh.AdminAudience), accountToken(t, client, systemNamespace, "sondectl-admin", mesh.AdminAudience)
	foreign := accountToken(t, client, "foreign", "default", mesh.AdminAudience)
	for what, err := range map[string]error{"sondectl reads": get(reader), "sondectl-admin reads": get(admin), "sondectl-admin rotates": change(admin)} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused(t, change(reader), codes.PermissionDenied,
		`rotations.sonde.dev is forbidden: User "system:serviceaccount:sonde-system:sondectl" cannot create resource "rotations" in API group "sonde.dev" at the cluster scope`)
	refused(t, get(foreign), codes.PermissionDenied,
		`proxies.sonde.dev is forbidden: User "system:serviceaccount:foreign:default" cannot get resource "proxies" in API group "sonde.dev" at the cluster scope`)
	stream, err := api.InspectEnvoy(withToken(t.Context(), foreign), &adminv1.InspectEnvoyRequest{Name: "web", View: "stats"})
	if err == nil {
		_, err = stream.Recv()
	}
	refused(t, err, codes.PermissionDenied,
		`proxies/envoy.sonde.dev is forbidden: User "system:serviceaccount:foreign:default" cannot get resource "proxies/envoy" in API group "sonde.dev" at the cluster scope`)
	refused(t, get(accountToken(t, client, systemNamespace, "sondectl", mesh.TokenAudience)), codes.Unauthenticated, `invalid token: aud: must contain "sonde-admin"`)
	refused(t, get(forged(reader)), codes.Unauthenticated, "invalid token: the API server rejects the token: [invalid bearer token, go-jose/go-jose: error in cryptographic primitive]")
	refused(t, get(withClaims(t, fmt.Sprintf(`{"aud":["sonde-admin"],"exp":%d}`, time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC).Unix()))), codes.Unauthenticated,
		"invalid token: it has expired: exp: 2020-01-02T03:04:05Z")
	refused(t, get("wrong"), codes.Unauthenticated, "the admin token is missing or wrong")
}

// forged returns a token with the signature of another.
func forged(token string) string {
	return token[:strings.LastIndexByte(token, '.')+1] + base64.RawURLEncoding.EncodeToString([]byte(rand.Text()))
}

// withClaims returns a token without a valid signature.
func withClaims(t *testing.T, claims string) string {
	t.Helper()
	encode := base64.RawURLEncoding.EncodeToString
	return strings.Join([]string{encode([]byte(`{"alg":"ES256"}`)), encode([]byte(claims)), encode(make([]byte, 64))}, ".")
}

// bind binds a service account to a ClusterRole until the test ends.
func bind(t *testing.T, client kubernetes.Interface, name, role, namespace, account string) {
	t.Helper()
	_, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.RbacV1().ClusterRoleBindings().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// A deleted service account loses its rights once the cached review of its token expires. A new role binding takes
// effect at once.
func TestAdminAccessChanges(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	installSondectl(t, client)
	namespace(t, client, "access", nil)
	p := startPlane(t, "a")
	api, _ := p.adminClient(t, client)
	token := accountToken(t, client, "access", "default", mesh.AdminAudience)
	list := func() error {
		_, err := api.ListMeshes(withToken(t.Context(), token), &adminv1.ListMeshesRequest{})
		return err
	}
	if err := list(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("ListMeshes() = %v, want PermissionDenied", err)
	}
	bind(t, client, "access-reads", "sondectl", "access", "default")
	must.Poll(t, "the right", func(context.Context) error { return list() }) // the API server needs a moment
	if err := client.CoreV1().ServiceAccounts("access").Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must.Poll(t, "the token to be refused", func(context.Context) error {
		err := list()
		if status.Code(err) != codes.Unauthenticated {
			return fmt.Errorf("ListMeshes() = %w", err)
		}
		return nil
	})
}

// A flood of invalid tokens from one address causes no more token reviews than the limit allows. The admin token and
// tokens with a cached review still work.
func TestAdminAccessFlood(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	installSondectl(t, client)
	p := startPlane(t, "a")
	api, byAdminToken := p.adminClient(t, client)
	reader := accountToken(t, client, systemNamespace, "sondectl", mesh.AdminAudience)
	call := func(ctx context.Context) error {
		_, err := api.GetHealth(ctx, &adminv1.GetHealthRequest{})
		return err
	}
	if err := call(withToken(t.Context(), reader)); err != nil {
		t.Fatal(err)
	}
	codesOf := map[codes.Code]int{}
	begin := time.Now()
	calls := 0
	for ; calls < 100 && codesOf[codes.ResourceExhausted] < 20; calls++ { // in less time than a review stays cached
		codesOf[status.Code(call(withToken(t.Context(), forged(reader))))]++
	}
	// The burst, and the reviews that the rate allows meanwhile.
	if most := 20 + int(time.Since(begin).Seconds()*5) + 1; codesOf[codes.Unauthenticated] > most || codesOf[codes.ResourceExhausted] != calls-codesOf[codes.Unauthenticated] {
		t.Errorf("%d forged tokens got %v, want at most %d of them checked", calls, codesOf, most)
	}
	for name, ctx := range map[string]context.Context{"admin token": byAdminToken, "known": withToken(t.Context(), reader)} {
		if err := call(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	must.Poll(t, "a forged token to be refused unchecked", func(ctx context.Context) error { // the limit allows some each second
		return differs(call(withToken(ctx, forged(reader))), codes.ResourceExhausted, "too many tokens from this address are being checked: try again in a second")
	})
}

// While the API server is unreachable, the admin token works, and other callers get an error that says why
// their token cannot be checked.
func TestAdminAccessWithoutAPIServer(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	installSondectl(t, client)
	address, kubeconfig := must.FreeAddresses(t, 1)[0], filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(kubeconfig, "https://"+address, cluster.Config.BearerToken); err != nil {
		t.Fatal(err)
	}
	away := forward(t, address)
	p := startPlane(t, "a", func(o *controlplane.Options) { o.Kubernetes.Kubeconfig = kubeconfig })
	api, byAdminToken := p.adminClient(t, client)
	reader := withToken(t.Context(), accountToken(t, client, systemNamespace, "sondectl", mesh.AdminAudience))
	away()
	must.Poll(t, "the error for callers", func(context.Context) error { // open connections break a moment later
		_, err := api.ListMeshes(reader, &adminv1.ListMeshesRequest{})
		return differs(err, codes.Unavailable, `the API server does not answer whether the caller may: the token cannot be checked now: review token: Post "https://`+address+
			`/apis/authentication.k8s.io/v1/tokenreviews": dial tcp `+address+`: connect: connection refused; the admin token works without it`)
	})
	if _, err := api.ListMeshes(byAdminToken, &adminv1.ListMeshesRequest{}); err != nil {
		t.Errorf("ListMeshes() with the admin token = %v", err)
	}
}

// published returns the CAs that clients read.
func published(ctx context.Context, client kubernetes.Interface) (string, error) {
	m, err := client.CoreV1().ConfigMaps(systemNamespace).Get(ctx, mesh.ServingCAConfigMap, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return m.Data[mesh.ServingCAKey], nil
}

// The leader publishes the CAs of the control plane, and restores them after an edit or deletion.
func TestServingCAIsPublished(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	startPlane(t, "a")
	want := string(secret(t, client, "sonde-serving-ca.crt"))
	right := func(what string) {
		t.Helper()
		must.Poll(t, "the CAs "+what, func(ctx context.Context) error {
			is, err := published(ctx, client)
			if err == nil && is != want {
				err = fmt.Errorf("%q", is)
			}
			return err
		})
	}
	right("at the start")
	maps := client.CoreV1().ConfigMaps(systemNamespace)
	edit := func(data map[string]string) {
		t.Helper()
		m, err := maps.Get(t.Context(), mesh.ServingCAConfigMap, metav1.GetOptions{})
		if err == nil {
			m.Data = data
			_, err = maps.Update(t.Context(), m, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	edit(map[string]string{mesh.ServingCAKey: "of somebody else", "more": "of theirs"})
	right("after an edit")
	if m, err := maps.Get(t.Context(), mesh.ServingCAConfigMap, metav1.GetOptions{}); err != nil || m.Data["more"] != "of theirs" {
		t.Errorf("other keys in the ConfigMap: %v, %v, want them unchanged", m.Data, err)
	}
	edit(nil)
	right("after it was emptied")
	if err := maps.Delete(t.Context(), mesh.ServingCAConfigMap, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	right("after it was deleted")
	if m, err := maps.Get(t.Context(), mesh.ServingCAConfigMap, metav1.GetOptions{}); err != nil || strings.Contains(fmt.Sprint(m.Data), "PRIVATE KEY") {
		t.Errorf("the ConfigMap has a key: %v", err)
	}
}
