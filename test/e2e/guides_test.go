//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// guideBlock matches a block of commands of a guide.
var guideBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// guide is a page of docs/guides, which the test follows in a new directory.
type guide struct {
	t         *testing.T
	directory string
	blocks    []string
}

// newGuide reads a guide. Its commands find helm and kubectl, and the chart as in a clone.
func newGuide(t *testing.T, r *release, name string) *guide {
	t.Helper()
	root := filepath.Dir(filepath.Dir(r.now.path))
	text, err := os.ReadFile(filepath.Join(root, "docs", "guides", name))
	if err != nil {
		t.Fatal(err)
	}
	g := &guide{t: t, directory: t.TempDir()}
	for _, b := range guideBlock.FindAllStringSubmatch(string(text), -1) {
		g.blocks = append(g.blocks, b[1])
	}
	for link, to := range map[string]string{
		"deploy": filepath.Join(root, "deploy"), "bin/helm": os.Getenv("SONDE_E2E_HELM"), "bin/sondectl": filepath.Join(root, "bin", "sondectl"), "bin/kubectl": filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "kubectl"),
	} {
		at := filepath.Join(g.directory, link)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, at); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// next runs the next block, and returns its output.
func (g *guide) next() string {
	g.t.Helper()
	if len(g.blocks) == 0 {
		g.t.Fatal("the guide has no more commands")
	}
	commands := g.blocks[0]
	g.blocks = g.blocks[1:]
	ctx, cancel := context.WithTimeout(g.t.Context(), 8*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir, cmd.Env = g.directory, append(os.Environ(), "PATH="+filepath.Join(g.directory, "bin")+":"+os.Getenv("PATH"))
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		g.t.Fatalf("%s%v: %s%s", commands, err, out, &said)
	}
	return string(out)
}

// end fails the test unless all commands were run.
func (g *guide) end() {
	g.t.Helper()
	if len(g.blocks) > 0 {
		g.t.Errorf("commands that were not run: %q", g.blocks)
	}
}

// shop creates the namespace of the guides, with a Deployment in the mesh.
func shop(t *testing.T) *namespace {
	t.Helper()
	n := &namespace{t: t, name: "shop", injected: true}
	_, err := cluster.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: injected}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if t.Failed() {
			t.Log(n.describe(ctx))
		}
		if err := cluster.client.CoreV1().Namespaces().Delete(ctx, n.name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	n.wait("its service account", func() error {
		_, err := cluster.client.CoreV1().ServiceAccounts(n.name).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	n.create(newDeployment("web", 2, nil))
	n.waitRolledOut("web")
	return n
}

// TestAloneGuides follows docs/guides/upgrade.md and docs/guides/uninstall.md, from the previous release to a cluster
// without Sonde's objects, and then docs/guides/install.md. It runs alone.
func TestAloneGuides(t *testing.T) {
	r := newRelease(t)
	r.removeAll()
	r.installAnew(r.previous)
	n := shop(t)

	g := newGuide(t, r, "upgrade.md")
	g.next()
	values := filepath.Join(g.directory, "values.yaml") // as the guide advises users whose values have a tag
	text, err := os.ReadFile(values)
	if err == nil {
		err = os.WriteFile(values, []byte(strings.Replace(string(text), "tag: previous", "tag: dev", 1)), 0o600)
	}
	if err != nil || !strings.Contains(string(text), "tag: previous") {
		t.Fatalf("the values are %q: %v", text, err)
	}
	g.next()
	r.checkDefinitions("upgraded", true)
	(&namespace{t: t, name: systemNamespace}).waitReplicas() // as the guide says: replicas that end still inject the previous release
	g.next()
	n.waitRolledOut("web")
	n.wait("sidecars of this release alone", func() error { // old sidecars end beside them
		if got := n.images(n.podsOf("web")...); !slices.Equal(got, []string{"dev"}) {
			return fmt.Errorf("the images are %q", got)
		}
		return nil
	})
	g.next()
	r.checkDefinitions("rolled back", true)
	g.end()

	r.install(r.now)
	g = newGuide(t, r, "uninstall.md")
	g.next()
	n.waitRolledOut("web")
	for _, name := range n.podsOf("web") {
		if p := n.pod(name); len(p.Spec.InitContainers) > 0 || slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == mesh.ContainerSidecar }) {
			t.Errorf("pod %s still has a sidecar", name)
		}
	}
	if left := g.next(); left != "" {
		t.Errorf("pods that still have a sidecar: %q", left)
	}
	g.next()
	if list := g.next(); !strings.Contains(list, "customresourcedefinition.apiextensions.k8s.io/meshes.sonde.dev\n") || !strings.Contains(list, "secret/sonde-ca-default\n") {
		t.Errorf("objects left: %s", list)
	}
	g.next()
	g.end()
	if left := r.definitions(); len(left) > 0 {
		t.Errorf("the definitions %v are left", left)
	}
	if _, err := cluster.client.CoreV1().Namespaces().Get(t.Context(), systemNamespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the namespace is left: %v", err)
	}

	followInstall(t, r)
}

// followInstall follows docs/guides/install.md on a cluster without Sonde's objects.
func followInstall(t *testing.T, r *release) {
	t.Helper()
	g := newGuide(t, r, "install.md")
	if err := os.WriteFile(filepath.Join(g.directory, "values.yaml"), nil, 0o600); err != nil { // with the chart's image
		t.Fatal(err)
	}
	t.Logf("before an installation:\n%s", g.next())
	t.Logf("after it:\n%s", g.next())
	if proxies := g.next(); !strings.Contains(proxies, "connected") || !strings.Contains(proxies, "web-") {
		t.Errorf("the proxies are\n%s", proxies)
	}
	g.end()
}
