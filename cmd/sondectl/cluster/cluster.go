// Package cluster reaches the control plane in a Kubernetes cluster through its API server, with the rights of a kubeconfig: it finds a replica,
// forwards a port to it, reads the CAs by which it is verified, and gets tokens of the chart's service accounts.
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

// Flags that say which control plane is meant.
const (
	FlagKubeconfig = "kubeconfig"
	FlagContext    = "kube-context"
	FlagNamespace  = "control-plane-namespace"
)

// DefaultNamespace is where the control plane is unless the caller says something else.
const DefaultNamespace = "sonde-system"

// requestTimeout limits a request to the API server.
const requestTimeout = 15 * time.Second

// Options say which cluster, and which control plane in it.
type Options struct {
	// Kubeconfig is a file. Default: as kubectl finds it, and in a pod its service account.
	Kubeconfig string
	// Context of the kubeconfig. Default: its current one.
	Context string
	// Namespace of the control plane. Default: DefaultNamespace, where no other has one.
	Namespace string
	// Dial connects to the API server. Default: that of client-go.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Add adds the flags.
func (o *Options) Add(flags *pflag.FlagSet) {
	flags.StringVar(&o.Kubeconfig, FlagKubeconfig, "", "`FILE` with the address of the API server, to reach the control plane in its cluster; default as kubectl")
	flags.StringVar(&o.Context, FlagContext, "", "`NAME` of a context of the kubeconfig; default its current one")
	flags.StringVar(&o.Namespace, FlagNamespace, "", "`NAMESPACE` of the control plane in the cluster; default "+DefaultNamespace)
}

// Cluster is a Kubernetes cluster.
type Cluster struct {
	// Config and Client have the rights of the kubeconfig. Config has a timeout for each request.
	Config *rest.Config
	Client kubernetes.Interface

	namespace string // of the control plane, "" if the caller has named none
	context   string // of the kubeconfig, "" in a pod
	objects   string // namespace of the context
}

// Open reads the kubeconfig. Nothing is asked. The error wraps ErrNoKubeconfig if there is none.
func Open(o Options) (*Cluster, error) { return o.open(FlagContext, requestTimeout) }

// Namespace returns the one in which the caller means the control plane to be.
func (c *Cluster) Namespace() string { return cmp.Or(c.namespace, DefaultNamespace) }
