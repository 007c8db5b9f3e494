package watchdog

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/test/apiserver"
	"github.com/sonde-mesh/sonde/test/cgrouptest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

const (
	// chartMemory is the chart's memory limit for a watchdog.
	chartMemory = 256 << 20
	// Each of largeNodes has largeBytes bytes of annotations.
	largeNodes, largeBytes = 500, 150_000
)

// A cluster whose nodes need more memory than the chart's limit for a watchdog cannot exhaust it: large clusters get
// verdicts, and so does a small cluster beside them.
func TestLargeClusters(t *testing.T) {
	program, err := harness.BuildInto(t.Context(), t.TempDir(), "cmd/sonde-watchdog")
	must.Do(t, err)
	limited := cgrouptest.NewMemory(t, chartMemory)
	renew := makeLargeNodes(t, apiserver.ForTest(t))
	small := newScene(t, "small", 3)
	small.watch("local: true")
	var large []*scene
	for i := range 2 {
		s := newScene(t, fmt.Sprint("large-", i), 0)
		s.secret(renew.kubeconfig(t))
		s.watch("kubeconfigSecretName: probe")
		_, err := cluster.Do(t.Context(), http.MethodPatch, s.path()+"/"+s.name, "application/merge-patch+json", `{"spec":{"settings":{"probeTimeout":"10m"}}}`)
		must.Do(t, err)
		large = append(large, s)
	}
	small.startProcess(limited.Program(t, program))
	small.verdict("seen", "")
	for _, s := range large {
		o := s.verdict("unknown", "unheard") // their leases are read, and not renewed yet
		if !slices.Contains(o.Status.Counts, v1alpha1.NodeCount{Nodes: largeNodes, Unheard: largeNodes}) {
			t.Errorf("the counts of %s are %+v, want %d nodes", s.name, o.Status.Counts, largeNodes)
		}
	}
	renew.all(t)
	small.connect(false)
	small.scaled(0, 0, 0)
	small.verdict("lost", "all")
	for _, s := range large { // the watchdog reads whole nodes for their taints
		s.scaled(0, 0, 0)
		s.verdict("lost", "all")
	}
	small.connect(true)
	small.scaled(2, 1, 1)
	small.verdict("seen", "")
	t.Logf("at most %d MiB were used", limited.Peak(t)>>20)
	if n := limited.Killed(t); n > 0 {
		t.Errorf("%d processes were killed for lack of memory", n)
	}
}

// largeCluster is an API server with large nodes.
type largeCluster struct {
	*proxy
	client *kubernetes.Clientset
}

// makeLargeNodes creates the nodes of an API server, each with a lease.
func makeLargeNodes(t *testing.T, c *apiserver.Cluster) *largeCluster {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.Config)
	must.Do(t, err)
	l := &largeCluster{newProxyOf(t, c, apiserver.OwnAddress(t)), client}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-node-lease"}}
	made, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{})
	mustCreate(t, made, err)
	annotations := map[string]string{"example.com/large": strings.Repeat("a", largeBytes)}
	l.each(t, func(ctx context.Context, name string) error {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
		if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return err
		}
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NowMicro())}}
		_, err := client.CoordinationV1().Leases("kube-node-lease").Create(ctx, lease, metav1.CreateOptions{})
		return err
	})
	return l
}

// all renews each lease once.
func (l *largeCluster) all(t *testing.T) {
	t.Helper()
	l.each(t, func(ctx context.Context, name string) error {
		patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
		_, err := l.client.CoordinationV1().Leases("kube-node-lease").Patch(ctx, name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
		return err
	})
}

// each calls do with the name of each node, several at a time.
func (l *largeCluster) each(t *testing.T, do func(ctx context.Context, name string) error) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(4)
	for i := range largeNodes {
		group.Go(func() error { return do(ctx, fmt.Sprint("node-", i)) })
	}
	must.Do(t, group.Wait())
}

// startProcess starts a watchdog in its own process, which ends with the test.
func (s *scene) startProcess(program string) {
	t := s.t
	t.Helper()
	addresses, release, err := harness.FreeAddresses(1)
	must.Do(t, err)
	t.Cleanup(func() { must.Do(t, release()) })
	s.health = "http://" + addresses[0]
	log, err := os.Create(filepath.Join(t.TempDir(), "watchdog.log"))
	must.Do(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, program, "--kubeconfig="+cluster.Kubeconfig, "--namespace="+s.name, "--replica=a", "--health-addr="+addresses[0])
	cmd.Stderr = log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must.Do(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		ended := cmd.Wait()
		if text, err := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("the watchdog ended with %v, and printed: %s, %v", ended, text[max(0, len(text)-2000):], err)
		}
		must.Do(t, log.Close())
	})
}
