//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/test/chart"
)

// operator is a user of sondectl, who has only a kubeconfig.
type operator struct {
	*namespace
	kubeconfig string
}

// newOperator returns a service account of the namespace with the rights that docs/kubernetes.md lists. Its
// kubeconfig uses the test's API server.
func (n *namespace) newOperator() operator {
	n.t.Helper()
	roles, bindings := cluster.client.RbacV1().Roles(systemNamespace), cluster.client.RbacV1().RoleBindings(systemNamespace)
	role, err := chart.SondectlRole()
	if err == nil {
		role.Name = n.name
		_, err = roles.Create(n.t.Context(), role, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = bindings.Create(n.t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: n.name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: n.name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: n.name, Name: "default"}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		ctx := context.WithoutCancel(n.t.Context())
		if err := errors.Join(bindings.Delete(ctx, n.name, metav1.DeleteOptions{}), roles.Delete(ctx, n.name, metav1.DeleteOptions{})); err != nil {
			n.t.Error(err)
		}
	})
	made, err := cluster.client.CoreV1().ServiceAccounts(n.name).CreateToken(n.t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["e2e"] = &clientcmdapi.Cluster{Server: cluster.config.Host, CertificateAuthority: cluster.config.CAFile, CertificateAuthorityData: cluster.config.CAData}
	config.AuthInfos["operator"] = &clientcmdapi.AuthInfo{Token: made.Status.Token}
	config.Contexts["e2e"] = &clientcmdapi.Context{Cluster: "e2e", AuthInfo: "operator"}
	config.CurrentContext = "e2e"
	o := operator{n, filepath.Join(n.t.TempDir(), "kubeconfig")}
	if err := clientcmd.WriteToFile(*config, o.kubeconfig); err != nil {
		n.t.Fatal(err)
	}
	return o
}

// command returns a call of sondectl.
func (o operator) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(o.t.Context(), "../../bin/sondectl", args...)
	cmd.Env = []string{"HOME=" + filepath.Dir(o.kubeconfig), "KUBECONFIG=" + o.kubeconfig, "PATH=" + os.Getenv("PATH")}
	return cmd
}

// run runs sondectl, and returns its output.
func (o operator) run(args ...string) (stdout, stderr string, err error) {
	var out, errOut bytes.Buffer
	cmd := o.command(args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

// TestSondectlByKubeconfig has a user with the fewest rights read the mesh, query an Envoy, and make a change,
// through the API server and a kubelet.
func TestSondectlByKubeconfig(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	n.create(newPod("web", "node1"))
	n.waitReady("web")
	o := n.newOperator()
	proxy := "web." + n.name
	n.wait("its proxy in sondectl", func() error {
		out, stderr, err := o.run("get", "proxies", proxy, "-o", "json")
		var all []json.RawMessage
		if err == nil {
			err = json.Unmarshal([]byte(out), &all)
		}
		if err != nil || len(all) != 1 {
			return fmt.Errorf("%w: %s%s", err, stderr, out)
		}
		return nil
	})
	for _, args := range [][]string{
		{"inspect", "dataplane", proxy, "--type", "clusters"}, {"health"}, {"rotate", "serving-ca", "--status"}, {"restarts"},
		{"generate", "dataplane-token", "--name", "vm", "--workload", "vm", "--valid-for", "1h"}, // a change
	} {
		out, stderr, err := o.run(args...)
		if exit, is := errors.AsType[*exec.ExitError](err); err != nil && (!is || exit.ExitCode() != 4 && (exit.ExitCode() != 6 || args[0] != "health")) || out == "" && args[0] != "restarts" {
			t.Errorf("sondectl %s: %v: %s\n%s", strings.Join(args, " "), err, stderr, out)
		}
	}
	if _, stderr, err := o.run("get", "proxies", "--control-plane-namespace", n.name); err == nil || !strings.Contains(stderr, `cannot list resource "pods"`) {
		t.Errorf("in a namespace without rights: %v, %q", err, stderr)
	}
}

// TestAloneSondectlWatches deletes the replica to which sondectl --watch is connected: sondectl continues with
// another replica. It runs alone.
func TestAloneSondectlWatches(t *testing.T) {
	n := newNamespace(t, outside)
	cp := &namespace{t: t, name: systemNamespace}
	names := cp.waitReplicas()
	o := n.newOperator()
	var out, errOut logtest.Buffer
	watch := o.command("get", "meshes", "--watch", "-o", "name")
	watch.Stdout, watch.Stderr = &out, &errOut
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = watch.Process.Kill()
		_ = watch.Wait()
	})
	n.wait("the first list", func() error {
		if !strings.Contains(out.String(), "mesh/default\n") {
			return fmt.Errorf("%q, %q", out.String(), errOut.String())
		}
		return nil
	})
	for _, name := range names { // sondectl uses one of these
		cp.deletePod(name)
		cp.waitReplicas()
	}
	n.create(fmt.Sprintf(meshYAML, n.name, "PERMISSIVE"))
	n.wait("what has changed since", func() error {
		if !strings.Contains(out.String(), "mesh/"+n.name+"\n") {
			return fmt.Errorf("%q, %q", out.String(), errOut.String())
		}
		return nil
	})
	t.Logf("stderr: %q", errOut.String())
}
