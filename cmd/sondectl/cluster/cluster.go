// Package cluster connects to the control plane through the API server of its cluster, with the rights of a kubeconfig:
// it finds a replica, forwards a port to the replica, reads the CAs, and gets tokens of the chart's service accounts.
package cluster

import (
	"cmp"
	"context"
	"net"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Flags that select the control plane.
const (
	FlagKubeconfig = "kubeconfig"
	FlagContext    = "kube-context"
	FlagNamespace  = "control-plane-namespace"
)

// DefaultNamespace is the control plane's default namespace.
const DefaultNamespace = "sonde-system"

// requestTimeout limits a request to the API server.
const requestTimeout = 15 * time.Second

// Options select the cluster, and the control plane in it.
type Options struct {
	// Kubeconfig is a file. Default: kubectl's file; in a pod, its service account.
	Kubeconfig string
	// Context of the kubeconfig. Default: its current one.
	Context string
	// Namespace of the control plane. Default: DefaultNamespace, or the only namespace that has a control plane.
	Namespace string
	// Dial connects to the API server. Default: client-go's.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Add adds the flags.
func (o *Options) Add(flags *pflag.FlagSet) {
	flags.StringVar(&o.Kubeconfig, FlagKubeconfig, "", "kubeconfig `FILE` for the control plane's cluster; default kubectl's")
	flags.StringVar(&o.Context, FlagContext, "", "`NAME` of a context of the kubeconfig; default its current one")
	flags.StringVar(&o.Namespace, FlagNamespace, "",
		"`NAMESPACE` of the control plane in the cluster; default "+DefaultNamespace)
}

// Cluster is a Kubernetes cluster.
type Cluster struct {
	// Config and Client have the rights of the kubeconfig. Config has a timeout for each request.
	Config *rest.Config
	Client kubernetes.Interface

	namespace string // namespace of the control plane, "" if the caller has not set it
	context   string // context of the kubeconfig, "" in a pod
	objects   string // namespace of that context
}

// Open reads the kubeconfig. It sends no request. The error wraps ErrNoKubeconfig if it does not exist.
func Open(o Options) (*Cluster, error) { return o.open(FlagContext, requestTimeout) }

// Namespace returns the control plane's namespace: the caller's, otherwise the default.
func (c *Cluster) Namespace() string { return cmp.Or(c.namespace, DefaultNamespace) }
