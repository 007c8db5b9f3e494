package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/kubeconfig"
)

// objectsTimeout limits a request that may return many objects.
const objectsTimeout = 30 * time.Second

// ErrNoKubeconfig means that no kubeconfig exists, and that the program does not run in a pod.
var ErrNoKubeconfig = errors.New("kubeconfig not found")

// open reads the kubeconfig. It sends no request. contextFlag is the flag of o.Context, for errors, and timeout limits
// each request.
func (o Options) open(contextFlag string, timeout time.Duration) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.Context}
	loading := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	explain := func(err error) error {
		return fmt.Errorf("read kubeconfig: %w", kubeconfig.Explain(err, rules.GetLoadingPrecedence()...))
	}
	raw, err := loading.RawConfig()
	if err != nil {
		return nil, explain(err)
	}
	where := strings.Join(rules.GetLoadingPrecedence(), ", ")
	if err := checkContext(&raw, contextFlag, o.Context, where); err != nil {
		return nil, err
	}
	config, err := loading.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("%w in %s", ErrNoKubeconfig, where)
	}
	if err != nil {
		return nil, explain(err)
	}
	namespace, _, err := loading.Namespace()
	if err != nil {
		return nil, explain(err)
	}
	config.UserAgent, config.Dial, config.Timeout = "sondectl", o.Dial, timeout
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client for the API server: %w", err)
	}
	return &Cluster{config, client, o.Namespace, cmp.Or(o.Context, raw.CurrentContext), namespace}, nil
}

// checkContext returns an error if the context is unknown, or if none is selected although the kubeconfig has contexts.
func checkContext(raw *clientcmdapi.Config, flag, name, where string) error {
	if name == "" && raw.CurrentContext != "" {
		if _, ok := raw.Contexts[raw.CurrentContext]; !ok {
			return &mesh.FieldError{
				Field: "current-context of " + where, Value: raw.CurrentContext,
				Allowed: "must be one of its contexts" + names(raw),
			}
		}
		return nil
	}
	if name == "" {
		if len(raw.Contexts) == 0 {
			return nil // the program may run in a pod
		}
		return &mesh.FieldError{
			Field: "--" + flag, Allowed: "must be given, as " + where + " has no current context" + names(raw),
		}
	}
	if _, ok := raw.Contexts[name]; !ok {
		return &mesh.FieldError{Field: "--" + flag, Value: name, Allowed: "must be a context of " + where + names(raw)}
	}
	return nil
}

// names returns the names of the contexts, to append to an error.
func names(raw *clientcmdapi.Config) string {
	if len(raw.Contexts) == 0 {
		return ""
	}
	return ": " + strings.Join(slices.Sorted(maps.Keys(raw.Contexts)), ", ")
}

// Flags, like kubectl's, of commands that work on objects of Kubernetes.
const (
	FlagObjectsContext   = "context"
	FlagObjectsNamespace = "namespace"
)

// Objects select the objects of Kubernetes that a command works on, with the rights of the caller.
type Objects struct {
	// In selects the cluster by the flags of all commands.
	In *Options

	context, namespace string
}

// Add adds the flags. of says in their help whose namespace it is.
func (o *Objects) Add(flags *pflag.FlagSet, of string) {
	flags.StringVar(&o.context, FlagObjectsContext, "",
		"`NAME` of a context of the kubeconfig, same as --"+FlagContext+"; default its current one")
	o.AddNamespace(flags, of)
}

// AddNamespace is Add without the context flag, for a command that also calls the control plane in the context of all
// commands.
func (o *Objects) AddNamespace(flags *pflag.FlagSet, of string) {
	flags.StringVarP(&o.namespace, FlagObjectsNamespace, "n", "", "`NAMESPACE` of "+of+"; default the context's")
}

// NamespaceIn returns the namespace in an open cluster.
func (o *Objects) NamespaceIn(c *Cluster) string { return cmp.Or(o.namespace, c.objects) }

// Open returns the cluster, and the namespace in it. The error wraps ErrNoKubeconfig if it does not exist.
func (o *Objects) Open() (in *Cluster, namespace string, err error) {
	of, flag := *o.In, FlagContext
	if o.context != "" {
		of.Context, flag = o.context, FlagObjectsContext
	}
	if in, err = of.open(flag, objectsTimeout); err != nil {
		return nil, "", err
	}
	return in, o.NamespaceIn(in), nil
}
