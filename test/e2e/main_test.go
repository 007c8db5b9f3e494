//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/harness"
)

// systemNamespace is the namespace of the control plane.
const systemNamespace = "sonde-system"

// cluster is shared by all tests.
var cluster struct {
	config *rest.Config
	client kubernetes.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
	// nodes are the names of its nodes, at least two.
	nodes []string
}

func TestMain(m *testing.M) {
	err := connect()
	if err == nil {
		err = awaitAdmission()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e: connect to the cluster (`make e2e` starts one):", err)
		os.Exit(1)
	}
	code := m.Run()
	if code != 0 {
		fmt.Println(describeCluster(context.Background()))
	}
	os.Exit(code)
}

// describeCluster describes the nodes and the control plane after failed tests.
func describeCluster(ctx context.Context) string {
	var text strings.Builder
	nodes, err := cluster.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	for i := range nodes.Items {
		for _, c := range nodes.Items[i].Status.Conditions {
			fmt.Fprintf(&text, "%s: %s %s since %s: %s\n", nodes.Items[i].Name, c.Type, c.Status, c.LastTransitionTime.Format(time.TimeOnly), c.Message)
		}
	}
	events, err := (&namespace{name: metav1.NamespaceDefault}).events(ctx) // including events of nodes
	if err != nil {
		return err.Error()
	}
	for _, e := range events {
		fmt.Fprintf(&text, "  %s %s %s/%s: %s\n", e.LastTimestamp.Format(time.TimeOnly), e.Reason, e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Message)
	}
	return text.String() + (&namespace{name: systemNamespace}).describe(ctx)
}

func connect() (err error) {
	if cluster.config, err = clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG")); err != nil {
		return err
	}
	cluster.config.QPS, cluster.config.Burst = 200, 400
	if cluster.client, err = kubernetes.NewForConfig(cluster.config); err != nil {
		return err
	}
	cluster.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(cluster.client.Discovery()))
	nodes, err := cluster.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range nodes.Items {
		cluster.nodes = append(cluster.nodes, nodes.Items[i].Name)
	}
	if len(cluster.nodes) < 2 {
		return fmt.Errorf("nodes %v: clients and servers need one each", cluster.nodes)
	}
	return nil
}

// awaitAdmission waits until a pod would be injected. After an installation, or after nodes were lost, kube-proxy
// needs a while to learn the webhook's endpoints, and the control plane to create the Mesh default.
func awaitAdmission() error {
	p := newPod("first", cluster.nodes[0])
	return harness.Poll(context.Background(), "the injection of pods", func(ctx context.Context) error { return admit(ctx, p) })
}

// admit returns an error unless the API server would create the pod, with a sidecar.
func admit(ctx context.Context, p *corev1.Pod) error {
	p.Labels[mesh.LabelOwnInjection] = "enabled" // also if Sonde ignores Kuma's labels
	made, err := cluster.client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil && len(made.Spec.InitContainers) == 0 {
		err = errors.New("the pod has no sidecar")
	}
	return err
}

// newClient returns a client that calls warn for each warning of the API server.
func newClient(warn func(string)) (dynamic.Interface, error) {
	config := rest.CopyConfig(cluster.config)
	config.WarningHandler = warnings(warn)
	return dynamic.NewForConfig(config)
}

// warnings implements rest.WarningHandler.
type warnings func(string)

// HandleWarningHeader implements rest.WarningHandler.
func (w warnings) HandleWarningHeader(_ int, _, text string) { w(text) }
