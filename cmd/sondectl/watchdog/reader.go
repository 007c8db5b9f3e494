package watchdog

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

// Requests of a Reader per second: a cluster with three dependants takes seven.
const (
	readsPerSecond = 20
	readsBurst     = 40
)

// Reader reads the WatchedClusters of all namespaces again and again, with the caller's rights.
type Reader struct {
	in      *cluster.Cluster
	objects dynamic.ResourceInterface
	clients *scale.Clients
}

// NewReader returns a Reader of a cluster. It sends no request.
func NewReader(in *cluster.Cluster) (*Reader, error) {
	config := rest.CopyConfig(in.Config)
	config.QPS, config.Burst = readsPerSecond, readsBurst
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client for the API server: %w", err)
	}
	clients, err := scale.NewClients(config)
	if err != nil {
		return nil, fmt.Errorf("create client for the API server: %w", err)
	}
	return &Reader{in, client.Resource(v1alpha1.GroupVersion.WithResource("watchedclusters")), clients}, nil
}

// List returns at most limit clusters, and whether the API server has more. Its errors are for users.
func (r *Reader) List(ctx context.Context, limit int64) (clusters []v1alpha1.WatchedCluster, more bool, err error) {
	list, err := r.objects.List(ctx, metav1.ListOptions{Limit: limit})
	if err != nil {
		return nil, false, r.in.Explain("list WatchedClusters", err)
	}
	clusters, err = decode(list.Items...)
	return clusters, list.GetContinue() != "", err
}

// In returns a client for the dependants of a namespace, which Explain reads.
func (r *Reader) In(namespace string) scale.Objects { return r.clients.In(namespace) }
