//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// cniValues install the CNI plugin on the nodes of the test bed, which have other directories than usual.
var cniValues = []string{"--set=cni.enabled=true", "--set=cni.pods=namespaces", "--set=cni.pluginDir=/var/lib/cni/bin", "--set=cni.netnsDir=/run"}

// TestAloneCNI has pods in a namespace with Pod Security restricted. They start while the daemon runs and while it
// does not, and keep running after it is uninstalled. It runs alone because it upgrades the release.
func TestAloneCNI(t *testing.T) {
	before, err := os.ReadFile(conflistOf("node2"))
	if err != nil {
		t.Fatal(err)
	}
	r := currentRelease(t, cniValues...)
	r.install(r.now)
	waitCNI(t)
	n, outsider := newMesh(t, "STRICT"), newNamespace(t, outside)
	n.label(`{"pod-security.kubernetes.io/enforce":"restricted","sonde.dev/cni":"enabled"}`)
	n.create(restrictedPod("web", "node2"), newService("web"), restrictedPod("client", "node1"))
	outsider.create(newPod("stranger", "node1"))
	n.waitReady("web", "client")
	outsider.waitReady("stranger")
	stranger := outsider.app("stranger")

	t.Run("pods are in the mesh without kuma-init", func(t *testing.T) {
		for _, name := range []string{"web", "client"} {
			if podspec.Container(&n.pod(name).Spec, mesh.ContainerInit) != nil {
				t.Errorf("%s has kuma-init", name)
			}
		}
		a := n.app("client").waitCall("http://web.%s/", n.name)
		if peer := a.Headers.Get("X-Forwarded-Client-Cert"); !strings.Contains(peer, "URI=spiffe://") {
			t.Errorf("the application sees the peer %q", peer)
		}
		if c := stranger.call("http://%s:%d/", n.host("web"), portHTTP); c.Error == "" {
			t.Errorf("a stranger was answered: %+v", c)
		}
	})
	t.Run("pods start without the daemon", func(t *testing.T) { n.startWithoutDaemon(t, stranger) })
	t.Run("upgrade of the daemon under load", func(t *testing.T) {
		l := n.app("client").startLoad("http", fmt.Sprintf("http://web.%s/", n.name))
		upgradeDaemons(t)
		n.create(restrictedPod("upgraded", "node2"))
		n.waitReady("upgraded")
		l.waitMore(20)
		if report := l.stop(); report.Failed > 0 {
			t.Errorf("%v", report)
		}
	})
	t.Run("another plugin writes its configuration again", func(t *testing.T) {
		path := conflistOf("node2")
		if err := callsPlugin(path); err != nil {
			t.Fatal(err)
		}
		temporary := path + ".tmp"
		if err := errors.Join(os.WriteFile(temporary, before, 0o644), os.Rename(temporary, path)); err != nil {
			t.Fatal(err)
		}
		wait(t, "the plugin in "+path, func() error { return callsPlugin(path) })
		n.create(restrictedPod("rewritten", "node2"))
		n.waitReady("rewritten")
		if c := stranger.call("http://%s:%d/", n.host("rewritten"), portHTTP); c.Error == "" {
			t.Errorf("a stranger was answered: %+v", c)
		}
	})
	t.Run("uninstall with running pods", func(t *testing.T) {
		r.set = nil
		r.install(r.now)
		wait(t, "the end of the daemons", func() error { return countDaemons(t, 0) })
		for _, node := range []string{"node1", "node2"} {
			if err := callsPlugin(conflistOf(node)); !errors.Is(err, errNotCalled) {
				t.Errorf("%s after the uninstallation: %v, want %v", node, err, errNotCalled)
			}
		}
		n.app("client").waitCall("http://web.%s/", n.name)
		if c := stranger.call("http://%s:%d/", n.host("web"), portHTTP); c.Error == "" {
			t.Errorf("a stranger was answered: %+v", c)
		}
	})
}

// conflistOf returns the path of a node's network configuration.
func conflistOf(node string) string {
	return filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), node, "etc-cni-net.d", "10-pods.conflist")
}

var errNotCalled = errors.New("the network configuration does not name sonde-cni")

// callsPlugin returns errNotCalled if a network configuration does not name the plugin.
func callsPlugin(path string) error {
	text, err := os.ReadFile(path)
	if err == nil && !bytes.Contains(text, []byte("sonde-cni")) {
		err = errNotCalled
	}
	return err
}

// startWithoutDaemon starts 20 pods and a Job without the daemon. Only their sidecars run; after the daemon has
// started, all containers run.
func (n *namespace) startWithoutDaemon(t *testing.T, stranger app) {
	patchDaemonSet(t, `{"nodeSelector":{"kubernetes.io/os":"linux","sonde.dev/none":"none"}}`)
	wait(t, "the end of the daemons", func() error { return countDaemons(t, 0) })
	var names []string
	for i := range 20 {
		name := "web-" + strconv.Itoa(i)
		names = append(names, name)
		n.create(restrictedPod(name, "node"+strconv.Itoa(1+i%2)))
	}
	n.createJob()
	for _, name := range names {
		n.waitPod(name, "its sidecar to run", func(p *corev1.Pod) error {
			if s := status(p, mesh.ContainerSidecar); s.State.Running == nil || p.Status.PodIP == "" {
				return errors.New(summary(p))
			}
			return nil
		})
	}
	var loads []load
	for _, name := range names[:4] {
		loads = append(loads, stranger.startLoad("http", fmt.Sprintf("http://%s:%d/", n.host(name), portHTTP)))
	}
	for _, l := range loads {
		l.waitMore(20)
	}
	for _, name := range names {
		if p := n.pod(name); status(p, "app").State.Running != nil {
			t.Errorf("the application of %s runs without redirection: %s", name, summary(p))
		}
	}
	patchDaemonSet(t, `{"nodeSelector":{"kubernetes.io/os":"linux","sonde.dev/none":null}}`)
	n.waitReady(names...)
	n.wait("the end of the job", func() error {
		j, err := cluster.client.BatchV1().Jobs(n.name).Get(t.Context(), "job", metav1.GetOptions{})
		if err == nil && j.Status.Succeeded != 1 {
			err = fmt.Errorf("it is %+v", j.Status)
		}
		return err
	})
	for i, l := range loads {
		l.waitMore(20)
		if report := l.stop(); report.Failed < report.Calls {
			t.Errorf("a stranger was answered by %s: %v", names[i], report)
		}
	}
	for _, name := range names {
		if s := status(n.pod(name), mesh.ContainerSidecar); s.RestartCount > 0 {
			t.Errorf("the sidecar of %s was restarted", name)
		}
	}
}

// createJob creates a Job that calls the Service web once.
func (n *namespace) createJob() {
	n.t.Helper()
	web, err := cluster.client.CoreV1().Services(n.name).Get(n.t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	job := restrictedPod("job", "node2").Spec
	// it has one attempt, which must not depend on the cluster's DNS server
	job.RestartPolicy, job.Containers[0].Args, job.Containers[0].ReadinessProbe = corev1.RestartPolicyNever, []string{"--call=http://" + mesh.JoinHostPort(web.Spec.ClusterIP, 80)}, nil
	n.create(&batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"}, ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec: batchv1.JobSpec{BackoffLimit: new(int32(0)), Template: corev1.PodTemplateSpec{Spec: job}},
	})
}

// restrictedPod returns a pod that Pod Security restricted accepts.
func restrictedPod(name, node string) *corev1.Pod {
	p := newPod(name, node)
	p.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: new(true), RunAsUser: new(int64(1000)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	return p
}

// label sets labels of the namespace.
func (n *namespace) label(labels string) {
	n.t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":%s}}`, labels)
	if _, err := cluster.client.CoreV1().Namespaces().Patch(n.t.Context(), n.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

func patchDaemonSet(t *testing.T, podSpec string) {
	t.Helper()
	patch := fmt.Sprintf(`{"spec":{"template":{"spec":%s}}}`, podSpec)
	if _, err := cluster.client.AppsV1().DaemonSets(systemNamespace).Patch(t.Context(), "sonde-cni", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// upgradeDaemons replaces the daemon on each node.
func upgradeDaemons(t *testing.T) {
	t.Helper()
	patchDaemonSet(t, `{"terminationGracePeriodSeconds":29}`)
	wait(t, "the upgrade of the daemons", func() error {
		d, err := cluster.client.AppsV1().DaemonSets(systemNamespace).Get(t.Context(), "sonde-cni", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := d.Status; s.ObservedGeneration != d.Generation || s.UpdatedNumberScheduled != s.DesiredNumberScheduled || s.NumberAvailable != s.DesiredNumberScheduled {
			return fmt.Errorf("generation %d, %+v", d.Generation, s)
		}
		return nil
	})
}

func countDaemons(t *testing.T, want int) error {
	list, err := cluster.client.CoreV1().Pods(systemNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=sonde-cni"})
	if err == nil && len(list.Items) != want {
		err = fmt.Errorf("%d of them, want %d", len(list.Items), want)
	}
	return err
}

// waitCNI waits until all nodes report the plugin.
func waitCNI(t *testing.T) {
	t.Helper()
	wait(t, "the nodes' condition "+mesh.ConditionCNIReady, func() error {
		nodes, err := cluster.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range nodes.Items {
			conditions := nodes.Items[i].Status.Conditions
			at := slices.IndexFunc(conditions, func(c corev1.NodeCondition) bool { return c.Type == mesh.ConditionCNIReady })
			if at < 0 || conditions[at].Status != corev1.ConditionTrue {
				return fmt.Errorf("%s has %+v", nodes.Items[i].Name, conditions)
			}
		}
		return nil
	})
}
