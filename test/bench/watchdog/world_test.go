package watchdog

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sonde-mesh/sonde/test/harness"
)

const (
	leaseNamespace = "kube-node-lease"
	// renewEvery is how often kubelets renew their leases.
	renewEvery = 10 * time.Second
	// workers write in parallel.
	workers = 16
)

// world has the clusters, all with the same nodes.
type world struct {
	to       *forwarder
	client   *kubernetes.Clientset
	clusters int
	nodes    int
	began    time.Time
	renewed  atomic.Int64
}

func namespace(i int) string { return fmt.Sprintf("shoot--bench--%d", i) }

// newWorld creates clusters and nodes, whose leases are renewed until the benchmark ends.
func newWorld(b *testing.B, clusters, nodes int, to *forwarder) *world {
	b.Helper()
	config := rest.CopyConfig(cluster.Config)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		b.Fatal(err)
	}
	w := &world{to: to, client: client, clusters: clusters, nodes: nodes, began: time.Now()}
	kubeconfig := w.kubeconfig(b)
	b.Cleanup(w.remove(b))
	must := func(_ any, err error) error {
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	if err := must(client.CoreV1().Namespaces().Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: leaseNamespace}}, metav1.CreateOptions{})); err != nil {
		b.Fatal(err)
	}
	if err := each(b.Context(), nodes, func(ctx context.Context, i int) error {
		now := metav1.NowMicro()
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node(i)}, Spec: coordinationv1.LeaseSpec{HolderIdentity: new(node(i)), LeaseDurationSeconds: new(int32(40)), RenewTime: &now}}
		return errors.Join(must(client.CoreV1().Nodes().Create(ctx, nodeObject(i), metav1.CreateOptions{})), must(client.CoordinationV1().Leases(leaseNamespace).Create(ctx, lease, metav1.CreateOptions{})))
	}); err != nil {
		b.Fatal(err)
	}
	if err := each(b.Context(), clusters, func(ctx context.Context, i int) error {
		ns := namespace(i)
		err := must(client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}))
		for _, name := range []string{"kube-controller-manager", "machine-controller-manager", "cluster-autoscaler"} {
			err = errors.Join(err, must(client.AppsV1().Deployments(ns).Create(ctx, deployment(name), metav1.CreateOptions{})))
		}
		if err != nil {
			return err
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
		if _, err = client.CoreV1().Secrets(ns).Create(ctx, secret, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			_, err = client.CoreV1().Secrets(ns).Update(ctx, secret, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
		_, err = cluster.Do(ctx, http.MethodPost, watchedPath(i), "application/yaml", watchedCluster)
		return err
	}); err != nil {
		b.Fatal(err)
	}
	w.renew(b)
	return w
}

func watchedPath(i int) string {
	return "/apis/sonde.dev/v1alpha1/namespaces/" + namespace(i) + "/watchedclusters"
}

// watchedCluster of each cluster.
const watchedCluster = `apiVersion: sonde.dev/v1alpha1
kind: WatchedCluster
metadata: {name: config}
spec:
  kubeconfigSecretName: probe
  settings: {kcmNodeMonitorGraceDuration: 10m}
  dependants:
  - {ref: {apiVersion: apps/v1, kind: Deployment, name: kube-controller-manager}, scaleUp: {level: 0}, scaleDown: {level: 1}}
  - {ref: {apiVersion: apps/v1, kind: Deployment, name: machine-controller-manager}, scaleUp: {level: 1}, scaleDown: {level: 0}}
  - {ref: {apiVersion: apps/v1, kind: Deployment, name: cluster-autoscaler}, optional: true, scaleUp: {level: 2}, scaleDown: {level: 0}}
`

// each calls do n times, several at once.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

func node(i int) string { return fmt.Sprintf("shoot--bench-worker-z1-5d8f7c6b9-%05d", i) }

// nodeObject has about as much metadata as a cloud's node: a probe reads the metadata.
func nodeObject(i int) *corev1.Node {
	labels, annotations := map[string]string{"kubernetes.io/hostname": node(i), corev1.LabelTopologyZone: fmt.Sprintf("eu-west-1%c", 'a'+i%3)}, map[string]string{}
	for j := range 20 {
		labels[fmt.Sprintf("node.example.com/label-of-some-length-%d", j)] = "a-value-of-a-label"
	}
	for j := range 10 {
		annotations[fmt.Sprintf("node.example.com/annotation-of-some-length-%d", j)] = strings.Repeat("x", 60)
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node(i), Labels: labels, Annotations: annotations}}
}

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
	}}
}

// kubeconfig of all clusters.
func (w *world) kubeconfig(b *testing.B) []byte {
	b.Helper()
	ca, err := os.ReadFile(cluster.Config.CAFile)
	if err != nil {
		b.Fatal(err)
	}
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: w.to.address, CertificateAuthorityData: ca, TLSServerName: "kubernetes.default.svc"}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: cluster.Config.BearerToken}
	c.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "x"
	text, err := clientcmd.Write(*c)
	if err != nil {
		b.Fatal(err)
	}
	return text
}

// renew renews all leases repeatedly, spread over the renewal interval, until the benchmark ends.
func (w *world) renew(b *testing.B) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	var running sync.WaitGroup
	b.Cleanup(func() {
		cancel()
		running.Wait()
	})
	due := make(chan int)
	running.Go(func() {
		defer close(due)
		tick := time.NewTicker(renewEvery / time.Duration(w.nodes))
		defer tick.Stop()
		for i := 0; ; i = (i + 1) % w.nodes {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				due <- i
			}
		}
	})
	for range workers {
		running.Go(func() {
			for i := range due {
				patch := fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
				if _, err := w.client.CoordinationV1().Leases(leaseNamespace).Patch(ctx, node(i), types.MergePatchType, patch, metav1.PatchOptions{}); err == nil {
					w.renewed.Add(1)
				}
			}
		})
	}
}

// remove returns a function that deletes clusters and nodes: the next benchmark has others. Namespaces and
// dependants stay.
func (w *world) remove(b *testing.B) func() {
	return func() {
		ctx := context.Background()
		err := each(ctx, w.clusters, func(ctx context.Context, i int) error {
			_, err := cluster.Do(ctx, http.MethodDelete, watchedPath(i)+"/config", "", "")
			return err
		})
		for name, remove := range map[string]func() error{
			"nodes": func() error {
				return w.client.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
			},
			"leases": func() error {
				return w.client.CoordinationV1().Leases(leaseNamespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
			},
		} {
			if failed := remove(); failed != nil {
				err = errors.Join(err, fmt.Errorf("delete %s: %w", name, failed))
			}
		}
		if err != nil {
			b.Error(err)
		}
	}
}

// seen waits until the nodes of all clusters are seen.
func (p *process) seen(b *testing.B, w *world) {
	b.Helper()
	if err := harness.Poll(b.Context(), "all clusters to be seen", func(ctx context.Context) error {
		metrics, err := p.metrics(ctx)
		if err != nil {
			return err
		}
		seen := 0
		for i := range w.clusters {
			if v, has := metrics[fmt.Sprintf(`sonde_watchdog_state{cause="",cluster="%s/config",group="whole"}`, namespace(i))]; has && v == 0 {
				seen++
			}
		}
		if seen < w.clusters {
			return fmt.Errorf("%d of %d are", seen, w.clusters)
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}

func (p *process) metrics(ctx context.Context) (map[string]float64, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.health+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	return harness.ParseMetrics(response.Body)
}

func (p *process) read(b *testing.B) map[string]float64 {
	b.Helper()
	metrics, err := p.metrics(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	return metrics
}
