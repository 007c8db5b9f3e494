package kube

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// sondectl builds the program once, and returns its path.
var sondectl = sync.OnceValues(func() (string, error) {
	return harness.BuildInto(context.Background(), filepath.Join(filepath.Dir(cluster.Kubeconfig), "bin"), "cmd/sondectl")
})

// person is a user of sondectl, with a kubeconfig.
type person struct {
	*testing.T
	kubeconfig string
}

// newPerson returns a user with the rights that docs/kubernetes.md lists, except for some rights, given as verb and
// resource.
func newPerson(t *testing.T, client kubernetes.Interface, name, namespaceOfPlane string, without ...string) *person {
	t.Helper()
	namespace(t, client, name, nil)
	role, err := chart.SondectlRole()
	if err != nil {
		t.Fatal(err)
	}
	role.Name, role.Namespace = name, namespaceOfPlane
	for i := range role.Rules {
		rule := &role.Rules[i]
		rule.Verbs = slices.DeleteFunc(rule.Verbs, func(verb string) bool { return slices.Contains(without, verb+" "+rule.Resources[0]) })
	}
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return len(r.Verbs) == 0 })
	if _, err := client.RbacV1().Roles(namespaceOfPlane).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespaceOfPlane}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: name, Name: "default"}},
	}
	if _, err := client.RbacV1().RoleBindings(namespaceOfPlane).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kept := authorizationv1.ResourceAttributes{Verb: role.Rules[0].Verbs[0], Namespace: namespaceOfPlane}
	kept.Resource, kept.Subresource, _ = strings.Cut(role.Rules[0].Resources[0], "/")
	if names := role.Rules[0].ResourceNames; len(names) > 0 {
		kept.Name = names[0]
	}
	awaitRight(t, client, name, "default", kept, true)
	p := &person{t, filepath.Join(t.TempDir(), "kubeconfig")}
	if err := cluster.WriteKubeconfig(p.kubeconfig, cluster.Config.Host, accountToken(t, client, name, "default", "https://kubernetes.default.svc")); err != nil {
		t.Fatal(err)
	}
	return p
}

// command returns a call of sondectl without other configuration.
func (p *person) command(args ...string) *exec.Cmd {
	p.Helper()
	program, err := sondectl()
	if err != nil {
		p.Fatal(err)
	}
	cmd := exec.CommandContext(p.Context(), program, args...)
	cmd.Env = []string{"HOME=" + filepath.Dir(p.kubeconfig), "KUBECONFIG=" + p.kubeconfig, "PATH=" + os.Getenv("PATH")}
	return cmd
}

// calls runs sondectl, and returns its output and exit code.
func (p *person) calls(args ...string) (stdout, stderr string, code int) {
	p.Helper()
	cmd := p.command(args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		p.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

// sees checks that sondectl succeeds, and that its output matches.
func (p *person) sees(pattern string, args ...string) {
	p.Helper()
	stdout, stderr, code := p.calls(args...)
	if code != 0 || !regexp.MustCompile(pattern).MatchString(stdout) {
		p.Errorf("sondectl %s: exit code %d, stderr %q, stdout:\n%s\nwant %s", strings.Join(args, " "), code, stderr, stdout, pattern)
	}
}

// fails checks how sondectl fails. In text, API means the API server, and CONFIG the kubeconfig.
func (p *person) fails(code int, text string, args ...string) {
	p.Helper()
	stdout, stderr, is := p.calls(args...)
	stderr = strings.NewReplacer(cluster.Config.Host, "API", p.kubeconfig, "CONFIG").Replace(stderr)
	if is != code || stderr != text+"\n" || stdout != "" {
		p.Errorf("sondectl %s: exit code %d, want %d, stdout %q, stderr\n%s\nwant\n%s", strings.Join(args, " "), is, code, stdout, stderr, text)
	}
}

// watches starts sondectl with --watch until the test ends, and returns its output.
func (p *person) watches(args ...string) (stdout, stderr *logtest.Buffer) {
	p.Helper()
	stdout, stderr = &logtest.Buffer{}, &logtest.Buffer{}
	watch := p.command(append(args, "--watch")...)
	watch.Stdout, watch.Stderr = stdout, stderr
	if err := watch.Start(); err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() {
		_ = watch.Process.Kill()
		_ = watch.Wait()
	})
	return stdout, stderr
}

// says waits until b contains a text.
func says(t *testing.T, what string, b *logtest.Buffer, text string) {
	t.Helper()
	must.Poll(t, what, func(context.Context) error {
		if s := b.String(); !strings.Contains(s, text) {
			return fmt.Errorf("%q", s)
		}
		return nil
	})
}

// A user with four rights in the control plane's namespace reads and changes the mesh, without other preparation.
func TestSondectlOnACluster(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	installSondectl(t, client)
	p := startPlane(t, "a")
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	k := startKubelet(t, client)
	k.run(t, systemNamespace, "sonde-cp-a", "sonde", p)
	user := newPerson(t, client, "user", systemNamespace)
	user.sees(`(?m)^default `, "get", "meshes")
	seesStatus(t, user)
	for _, args := range [][]string{{"rotate", "ca", "--status"}, {"rotate", "ca"}} {
		// Exit code 4: the rotation waits for proxies of other tests.
		if stdout, stderr, code := user.calls(args...); code != 0 && code != 4 || !strings.HasPrefix(stdout, "mesh default: ") {
			t.Errorf("sondectl %s: exit code %d: %s%s", strings.Join(args, " "), code, stdout, stderr)
		}
	}
	user.fails(1, `sondectl: inspect dataplane: dataplane "web" not found in any mesh`, "inspect", "dataplane", "web", "--type", "stats")
	spdy := newPerson(t, client, "spdy", systemNamespace, "get pods/portforward")
	spdy.sees(`(?m)^default `, "get", "meshes")
	for name, want := range map[string]map[string]int{
		"user": {"token of sondectl": 4, "token of sondectl-admin": 1, "get pods/portforward": 1},
		"spdy": {"token of sondectl": 1, "create pods/portforward": 1},
	} {
		all, err := cluster.Requests("system:serviceaccount:" + name + ":default")
		if err != nil {
			t.Fatal(err)
		}
		is := map[string]int{}
		for _, r := range all {
			switch {
			case !r.Allowed:
			case r.Resource == "serviceaccounts/token":
				is["token of "+r.Name]++
			case r.Resource == "pods/portforward":
				is[r.Verb+" "+r.Resource] = 1 // the audit log has the start and the end
			}
		}
		if !maps.Equal(is, want) {
			t.Errorf("%s has used %v, want %v", name, is, want)
		}
	}
}

// seesStatus shows that a user's rights are sufficient for sondectl status. Other tests cause its
// problems.
func seesStatus(t *testing.T, p *person) {
	t.Helper()
	stdout, stderr, code := p.calls("status")
	if code != 0 && code != 6 || !strings.Contains(stdout, "ok: ") || strings.Contains(stdout, "could not be read") {
		t.Errorf("sondectl status: exit code %d: %s%s", code, stdout, stderr)
	}
}

// --watch continues with another replica when its replica ends. sondectl rejects a replica whose certificate is not
// from the published CAs.
func TestSondectlLosesItsReplica(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	installSondectl(t, client)
	k := startKubelet(t, client)
	p := startPlane(t, "a")
	k.run(t, systemNamespace, "sonde-cp-a", "sonde", p)
	user := newPerson(t, client, "watches", systemNamespace)
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	out, errOut := user.watches("get", "meshes", "-o", "name")
	says(t, "the first list", out, "mesh/default\n")
	k.stop("sonde-cp-a")
	says(t, "the loss", errOut, "sondectl: the connection to pod sonde-cp-a in namespace sonde-system is lost: error forwarding port 5681 to pod sonde-cp-a, uid : failed to connect to localhost:5681 inside the pod; retrying every 2s\n")
	k.remove(t, systemNamespace, "sonde-cp-a")
	k.run(t, systemNamespace, "sonde-cp-b", "sonde", p)
	says(t, "the other replica", errOut, "sondectl: the control plane responds again\n")
	apply(t, "", "meshes", `{apiVersion: sonde.dev/v1alpha1, kind: Mesh, metadata: {name: blue}}`)
	says(t, "what has changed", out, "mesh/blue\n")

	namespace(t, client, "other-ca", nil)
	foreign := ca.NewKey()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, foreign.Public(), foreign)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().ConfigMaps("other-ca").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "sonde-serving-ca"}, Data: map[string]string{"ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	k.run(t, "other-ca", "sonde-cp-c", "sonde", p)
	stranger := newPerson(t, client, "stranger", "other-ca")
	stranger.fails(1, `sondectl: get meshes: service account sondectl in namespace other-ca does not exist: Sonde's chart is too old for this sondectl`,
		"get", "meshes", "--control-plane-namespace=other-ca")
	if _, err := client.CoreV1().ServiceAccounts("other-ca").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "sondectl"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	stranger.fails(1, `sondectl: get meshes: the control plane at pod sonde-cp-c in namespace other-ca is not the one that ConfigMap sonde-serving-ca names: x509: certificate signed by unknown authority`,
		"get", "meshes", "--control-plane-namespace=other-ca")
}

// If no replica is Ready, sondectl uses a replica on a disconnected node.
func TestSondectlAsksALostReplica(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	installSondectl(t, client)
	k := startKubelet(t, client)
	k.run(t, systemNamespace, "sonde-cp-a", "sonde", startPlane(t, "a"), func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	})
	stdout, stderr, code := newPerson(t, client, "loses", systemNamespace).calls("get", "meshes")
	const want = "sondectl: no Ready replica of the control plane responds, using sonde-cp-a, whose answers may be old: the API server has lost contact with its node "
	if !strings.HasPrefix(stderr, want) || !strings.Contains(stdout, "default") || code != 0 {
		t.Errorf("sondectl: exit code %d, stdout %q, stderr %q, want %q", code, stdout, stderr, want)
	}
}

// sondectl names each missing right, and the user.
func TestSondectlWithoutRights(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	installSondectl(t, client)
	k := startKubelet(t, client)
	k.run(t, systemNamespace, "sonde-cp-a", "sonde", startPlane(t, "a"))
	const user = `User "system:serviceaccount:%s:default" cannot `
	for name, tc := range map[string]struct{ without, text string }{
		"no-pods":    {"list pods", `find control plane: pods is forbidden: ` + user + `list resource "pods" in API group "" in the namespace "sonde-system"`},
		"no-cas":     {"get configmaps", `read CAs of the control plane: configmaps "sonde-serving-ca" is forbidden: ` + user + `get resource "configmaps" in API group "" in the namespace "sonde-system"`},
		"no-forward": {"create pods/portforward", `forward a port to pod sonde-cp-a in namespace sonde-system: pods "sonde-cp-a" is forbidden: ` + user + `create resource "pods/portforward" in API group "" in the namespace "sonde-system"`},
		"no-token":   {"create serviceaccounts/token", `get a token of service account sondectl in namespace sonde-system: serviceaccounts "sondectl" is forbidden: ` + user + `create resource "serviceaccounts/token" in API group "" in the namespace "sonde-system"`},
	} {
		p := newPerson(t, client, name, systemNamespace, tc.without)
		p.fails(1, "sondectl: get proxies: "+fmt.Sprintf(tc.text, name), "get", "proxies")
	}
	t.Run("expired", func(t *testing.T) {
		p := &person{t, filepath.Join(t.TempDir(), "kubeconfig")}
		if err := cluster.WriteKubeconfig(p.kubeconfig, cluster.Config.Host, withClaims(t, `{"exp":1}`)); err != nil {
			t.Fatal(err)
		}
		p.fails(1, `sondectl: get proxies: find control plane: the API server at API rejects the credentials of context "test" of the kubeconfig: they may have expired, log in again`, "get", "proxies")
	})
	t.Run("foreign account", func(t *testing.T) { // its roles were removed
		p := newPerson(t, client, "unbound", systemNamespace)
		unbind(t, client, "sondectl")
		must.Poll(t, "the right to be removed", func(context.Context) error {
			_, stderr, _ := p.calls("get", "proxies")
			if want := `sondectl: get proxies: proxies.sonde.dev is forbidden: User "system:serviceaccount:sonde-system:sondectl" cannot get resource "proxies" in API group "sonde.dev" at the cluster scope` + "\n"; stderr != want {
				return fmt.Errorf("sondectl prints %q, want %q", stderr, want)
			}
			return nil
		})
	})
}

// unbind removes a ClusterRoleBinding until the test ends.
func unbind(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	bindings := client.RbacV1().ClusterRoleBindings()
	is, err := bindings.Get(t.Context(), name, metav1.GetOptions{})
	if err == nil {
		err = bindings.Delete(t.Context(), name, metav1.DeleteOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		is.ResourceVersion, is.UID = "", ""
		if _, err := bindings.Create(context.Background(), is, metav1.CreateOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// sondectl reports problems of the kubeconfig, the flags and the cluster before it calls a control
// plane.
func TestSondectlFindsNoControlPlane(t *testing.T) {
	client := newClient(t)
	namespace(t, client, systemNamespace, nil)
	p := &person{t, filepath.Join(t.TempDir(), "kubeconfig")}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(p.kubeconfig, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.fails(2, "sondectl: get proxies: no control plane is set, and kubeconfig not found in CONFIG: set --address, --ca-cert-file and --token-file, or their variables (see sondectl get proxies --help)", "get", "proxies")
	p.fails(1, "sondectl: get proxies: read kubeconfig: stat /nowhere: no such file or directory", "get", "proxies", "--kubeconfig=/nowhere")
	write("clusters: {")
	p.fails(1, "sondectl: get proxies: read kubeconfig: error loading config file \"CONFIG\": yaml: line 1: did not find expected node content", "get", "proxies")
	write("{apiVersion: v1, kind: Config, clusters: [{name: 7, cluster: {}}]}")
	p.fails(1, `sondectl: get proxies: read kubeconfig: CONFIG: clusters[0].name: 7: must be a text: put it in quotes`, "get", "proxies")

	if err := cluster.WriteKubeconfig(p.kubeconfig, cluster.Config.Host, cluster.Config.BearerToken); err != nil {
		t.Fatal(err)
	}
	p.fails(2, `sondectl: get proxies: --kube-context: "prod": must be a context of CONFIG: test (see sondectl get proxies --help)`, "get", "proxies", "--kube-context=prod")
	for _, flags := range [][2]string{{"--address=127.0.0.1:1", "--address"}, {"--ca-cert-file=ca.crt", "--ca-cert-file"}} {
		p.fails(2, `sondectl: get proxies: --kube-context: "test": must not be set with `+flags[1]+`: use either an address or a cluster (see sondectl get proxies --help)`,
			"get", "proxies", "--kube-context=test", flags[0])
	}
	const help = `: install Sonde there, or set --control-plane-namespace or --address`
	p.fails(3, `sondectl: get proxies: find control plane: namespace "sonde-system" of the cluster at API has no control plane: no pod has the label app.kubernetes.io/name=sonde`+help, "get", "proxies")
	p.fails(3, `sondectl: get proxies: find control plane: namespace "nowhere" of the cluster at API does not exist`+help, "get", "proxies", "--control-plane-namespace=nowhere")

	k := startKubelet(t, client)
	namespace(t, client, "second", nil)
	k.run(t, "second", "sonde-cp-b", "other", nil)
	p.fails(2, `sondectl: get proxies: --control-plane-namespace: must be given: namespace "sonde-system" has no control plane, but there is release "other" in namespace "second" (see sondectl get proxies --help)`, "get", "proxies")
	k.run(t, systemNamespace, "sonde-cp-a", "sonde", nil, func(p *corev1.Pod) {
		p.Status.Conditions[0].Status = corev1.ConditionFalse
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "sonde-cp", State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 40s restarting failed container"},
		}}}
	})
	p.fails(2, `sondectl: get proxies: --control-plane-namespace: must be given: several control planes found: release "other" in namespace "second", release "sonde" in namespace "sonde-system" (see sondectl get proxies --help)`, "get", "proxies")
	k.run(t, systemNamespace, "sonde-cp-c", "sonde", nil, func(p *corev1.Pod) { p.Status = corev1.PodStatus{} })
	k.run(t, systemNamespace, "sonde-cp-d", "sonde", nil, func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
	p.fails(3, `sondectl: get proxies: no replica of the control plane in namespace "sonde-system" is Ready: sonde-cp-a (CrashLoopBackOff: back-off 40s restarting failed container), sonde-cp-c (phase Pending), sonde-cp-d (its readiness probe fails)`,
		"get", "proxies", "--control-plane-namespace=sonde-system")
	k.run(t, "second", "sonde-cp-e", "third", nil)
	p.fails(1, `sondectl: get proxies: several control planes found: release "other" in namespace "second", release "third" in namespace "second": sondectl cannot choose between several in one namespace: use --address, or install them in separate namespaces and use --control-plane-namespace`,
		"get", "proxies", "--control-plane-namespace=second")
	k.remove(t, "second", "sonde-cp-e")
	p.fails(1, `sondectl: get proxies: ConfigMap sonde-serving-ca in namespace second does not exist: the control plane has no leader, or is too old for this sondectl`, "get", "proxies", "--control-plane-namespace=second")
	if _, err := client.CoreV1().ConfigMaps("second").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "sonde-serving-ca"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.fails(1, `sondectl: get proxies: ConfigMap sonde-serving-ca in namespace second: data["ca.crt"]: must hold certificates, PEM`, "get", "proxies", "--control-plane-namespace=second")
	if err := cluster.WriteKubeconfig(p.kubeconfig, "https://127.0.0.1:1", "x"); err != nil {
		t.Fatal(err)
	}
	p.fails(3, `sondectl: get proxies: find control plane: no response from the API server at https://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused`, "get", "proxies")
}
