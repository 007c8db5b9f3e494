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
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/kubeconfig"
)

// objectsTimeout limits a request for objects, of which there may be many.
const objectsTimeout = 30 * time.Second

// ErrNoKubeconfig says that there is no kubeconfig, and the program runs in no pod.
var ErrNoKubeconfig = errors.New("there is no kubeconfig")

// loaded is what a kubeconfig says.
type loaded struct {
	config             *rest.Config
	context, namespace string // context is "" in a pod
}

// load reads the kubeconfig. Nothing is asked. contextFlag is the flag that has o.Context, for errors.
func (o Options) load(contextFlag string) (loaded, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.Kubeconfig
	loading := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.Context})
	explain := func(err error) error {
		return fmt.Errorf("read the kubeconfig: %w", kubeconfig.Explain(err, rules.GetLoadingPrecedence()...))
	}
	raw, err := loading.RawConfig()
	if err != nil {
		return loaded{}, explain(err)
	}
	where := strings.Join(rules.GetLoadingPrecedence(), ", ")
	if err := checkContext(&raw, contextFlag, o.Context, where); err != nil {
		return loaded{}, err
	}
	config, err := loading.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return loaded{}, fmt.Errorf("%w in %s", ErrNoKubeconfig, where)
	}
	if err != nil {
		return loaded{}, explain(err)
	}
	namespace, _, err := loading.Namespace()
	if err != nil {
		return loaded{}, explain(err)
	}
	config.UserAgent = "sondectl"
	return loaded{config, cmp.Or(o.Context, raw.CurrentContext), namespace}, nil
}

// checkContext returns an error if a context is named that is not there, or none is although there are some.
func checkContext(raw *clientcmdapi.Config, flag, name, where string) error {
	if name == "" && raw.CurrentContext != "" {
		if _, ok := raw.Contexts[raw.CurrentContext]; !ok {
			return &mesh.FieldError{Field: "current-context of " + where, Value: raw.CurrentContext, Allowed: "must be one of its contexts" + names(raw)}
		}
		return nil
	}
	if name == "" {
		if len(raw.Contexts) == 0 {
			return nil // there may be a pod
		}
		return &mesh.FieldError{Field: "--" + flag, Allowed: "must be given, as " + where + " has no current context" + names(raw)}
	}
	if _, ok := raw.Contexts[name]; !ok {
		return &mesh.FieldError{Field: "--" + flag, Value: name, Allowed: "must be a context of " + where + names(raw)}
	}
	return nil
}

// names returns the names of the contexts, as the end of an error.
func names(raw *clientcmdapi.Config) string {
	if len(raw.Contexts) == 0 {
		return ""
	}
	return ": " + strings.Join(slices.Sorted(maps.Keys(raw.Contexts)), ", ")
}

// Flags of commands that work on objects of Kubernetes, as kubectl has them.
const (
	FlagObjectsContext   = "context"
	FlagObjectsNamespace = "namespace"
)

// Objects say which objects of Kubernetes a command works on, with the rights of the caller.
type Objects struct {
	// In is the cluster, by the flags of all commands.
	In *Options

	context, namespace string
}

// Add adds the flags. of says whose namespace it is.
func (o *Objects) Add(flags *pflag.FlagSet, of string) {
	flags.StringVar(&o.context, FlagObjectsContext, "", "`NAME` of a context of the kubeconfig, as --"+FlagContext+"; default its current one")
	o.AddNamespace(flags, of)
}

// AddNamespace is Add for a command that also asks the control plane, which is in the context of all commands.
func (o *Objects) AddNamespace(flags *pflag.FlagSet, of string) {
	flags.StringVarP(&o.namespace, FlagObjectsNamespace, "n", "", "`NAMESPACE` of "+of+"; default that of the context")
}

// NamespaceIn returns the namespace in a cluster that is open.
func (o *Objects) NamespaceIn(c *Cluster) string { return cmp.Or(o.namespace, c.objects) }

// Load reads the kubeconfig, and returns how to reach the API server, and the namespace. The error wraps ErrNoKubeconfig if there is none.
func (o *Objects) Load() (config *rest.Config, namespace string, err error) {
	in, flag := *o.In, FlagContext
	if o.context != "" {
		in.Context, flag = o.context, FlagObjectsContext
	}
	l, err := in.load(flag)
	if err != nil {
		return nil, "", err
	}
	l.config.Timeout = objectsTimeout
	return l.config, cmp.Or(o.namespace, l.namespace), nil
}
