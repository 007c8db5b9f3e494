package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/webhook"
)

// options are the flags. Each is also a key of the --config file.
type options struct {
	controlplane.Options
	// kumaLabels is the opposite of Kubernetes.Injection.OwnLabelOnly.
	kumaLabels bool
	form       string
	// logLevel is debug, info, warn or error.
	logLevel string
	config   string
}

// flagOf has the flag of each field of controlplane.Options that an error may name.
var flagOf = map[string]string{
	"Store": "--store", "StateDir": "--state-dir", "TrustDomain": "--trust-domain", "BindAddress": "--bind-address",
	"AgentsPort": "--agents-port", "AdminPort": "--admin-port", "HealthPort": "--health-port", "WebhookPort": "--webhook-port",
	"Kubernetes.Kubeconfig": "--kubeconfig", "Kubernetes.Namespace": "--namespace", "Kubernetes.Service": "--service-name",
	"Kubernetes.WebhookCertDir": "--webhook-cert-dir",
	"Image":                     "--sidecar-image", "Sidecar": "--sidecar-form", "VirtualProbesPort": "--virtual-probes-port", "ControlPlane": "--control-plane-address",
}

// nested has the keys of flags that are not at the top of the --config file. The last part is always that of the flag.
var nested = map[string]string{
	"kubeconfig": "runtime.kubernetes.", "namespace": "runtime.kubernetes.", "service-name": "runtime.kubernetes.",
	"replica": "runtime.kubernetes.", "webhook-port": "runtime.kubernetes.", "webhook-configuration": "runtime.kubernetes.",
	"webhook-cert-dir": "runtime.kubernetes.",
	"sidecar-image":    "runtime.kubernetes.injector.", "sidecar-form": "runtime.kubernetes.injector.",
	"virtual-probes-port": "runtime.kubernetes.injector.", "control-plane-address": "runtime.kubernetes.injector.",
	"kuma-labels": "injection.",
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.config, "config", "", "YAML `FILE` with these flags as keys (stateDir for state-dir); a flag takes precedence over its key")
	flags.StringVar(&o.Store, "store", "", "where objects come from: dir:`PATH`, a directory of YAML files, or kubernetes")
	flags.StringVar(&o.StateDir, "state-dir", "/var/lib/sonde", "`DIRECTORY` for keys and other state, created with mode 0700")
	flags.StringVar(&o.TrustDomain, "trust-domain", mesh.DefaultTrustDomain, "`SUFFIX` of the trust domains of all meshes")
	flags.StringVar(&o.BindAddress, "bind-address", controlplane.DefaultBindAddress, "`IP` address of all listeners; * means all addresses of the host")
	flags.Uint16Var(&o.AgentsPort, "agents-port", mesh.PortAgents, "`PORT` for agents and ADS, mTLS; 0 means a free one")
	flags.Uint16Var(&o.AdminPort, "admin-port", mesh.PortAdmin, "`PORT` for sondectl, TLS and token; 0 means a free one")
	flags.Uint16Var(&o.HealthPort, "health-port", mesh.PortHealth, "`PORT` for /livez, /readyz and /metrics, plain HTTP; 0 means a free one")
	o.addKubernetesFlags(flags)
	flags.StringVar(&o.logLevel, "log-level", "info", "`LEVEL`: debug, info, warn or error")
}

func (o *options) addKubernetesFlags(flags *pflag.FlagSet) {
	k := &o.Kubernetes
	flags.StringVar(&k.Kubeconfig, "kubeconfig", "", "`FILE` with the address of the API server; without it the control plane is a pod")
	flags.StringVar(&k.Namespace, "namespace", webhook.DefaultNamespace, "`NAMESPACE` of the control plane, for its Secrets and its Lease")
	flags.StringVar(&k.Service, "service-name", controlplane.DefaultService, "`NAME` of the control plane's Service")
	flags.StringVar(&k.Replica, "replica", "", "`NAME` of this replica; default the name of the host, which is that of its pod")
	flags.StringVar(&k.WebhookConfiguration, "webhook-configuration", "", "`NAME` of the webhook configurations into which the CA is written; default none")
	flags.StringVar(&k.WebhookCertDir, "webhook-cert-dir", "", "`DIRECTORY` with tls.crt, tls.key and ca.crt of the webhook, read again when they change; default a certificate of the control plane's own CA")
	flags.Uint16Var(&o.WebhookPort, "webhook-port", mesh.PortWebhook, "`PORT` for the API server, TLS; 0 means a free one")
	flags.StringVar(&k.Injection.Image, "sidecar-image", webhook.DefaultImage, "`IMAGE` of kuma-init and kuma-sidecar")
	flags.StringVar(&o.form, "sidecar-form", string(webhook.Native), "`FORM` of the sidecar: native or container")
	flags.Int32Var(&k.Injection.VirtualProbesPort, "virtual-probes-port", mesh.PortVirtualProbes, "`PORT` of the agent for probes, unless a pod asks for another one")
	flags.StringVar(&k.Injection.ControlPlane, "control-plane-address", "", "`HOST:PORT` of the control plane for agents; default that of its Service")
	flags.BoolVar(&o.kumaLabels, "kuma-labels", true, "read kuma.io/sidecar-injection; false where a Kuma in the cluster does")
}

// validate returns all violations, joined. Each names its flag.
func (o *options) validate(flags *pflag.FlagSet) error {
	o.Kubernetes.Injection.Sidecar, o.Kubernetes.Injection.OwnLabelOnly = webhook.Form(o.form), !o.kumaLabels
	errs := []error{mesh.RenameFields(o.Validate(), flagOf)}
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		errs = append(errs, fmt.Errorf("--log-level: %q: must be debug, info, warn or error", o.logLevel))
	}
	// Whoever passes a variable that is not set does not ask for the default.
	for _, flag := range []string{"trust-domain", "bind-address", "namespace", "service-name", "sidecar-image", "sidecar-form"} {
		if flags.Lookup(flag).Value.String() == "" {
			errs = append(errs, fmt.Errorf("--%s: must not be empty", flag))
		}
	}
	if o.Kubernetes.Injection.VirtualProbesPort == 0 {
		errs = append(errs, fmt.Errorf("--virtual-probes-port: %q: %s", "0", mesh.AllowedPort))
	}
	return errors.Join(errs...)
}

// readConfig sets all flags from the file that the command line does not set. An unknown key, or a value that its flag does
// not accept, is an error.
func readConfig(path string, flags *pflag.FlagSet) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read --config: %w", err)
	}
	values := map[string]any{}
	if err := yaml.UnmarshalStrict(data, &values); err != nil {
		return fmt.Errorf("read --config %s: %w", path, err)
	}
	allowed := map[string]*pflag.Flag{}
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != "config" && f.Name != "help" {
			allowed[nested[f.Name]+camelCase(f.Name)] = f
		}
	})
	var errs []error
	for key, value := range flatten(values, "") {
		flag := allowed[key]
		switch {
		case flag == nil:
			errs = append(errs, fmt.Errorf("%s: %s: unknown key; must be one of %s", path, key, strings.Join(sortedKeys(allowed), ", ")))
		case flag.Changed:
		case !isScalar(value):
			errs = append(errs, fmt.Errorf("%s: %s: must be one value, as --%s", path, key, flag.Name))
		default:
			if err := flag.Value.Set(fmt.Sprint(value)); err != nil {
				errs = append(errs, fmt.Errorf("%s: %s: %q: %w", path, key, fmt.Sprint(value), err))
			}
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// flatten returns the values by the path of their keys, such as runtime.kubernetes.namespace.
func flatten(values map[string]any, prefix string) map[string]any {
	flat := map[string]any{}
	for key, value := range values {
		if inner, ok := value.(map[string]any); ok {
			maps.Copy(flat, flatten(inner, prefix+key+"."))
		} else {
			flat[prefix+key] = value
		}
	}
	return flat
}

func isScalar(value any) bool {
	switch value.(type) {
	case string, bool, float64:
		return true
	}
	return false
}

func sortedKeys(m map[string]*pflag.Flag) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// camelCase turns the name of a flag into its key: state-dir into stateDir.
func camelCase(flag string) string {
	parts := strings.Split(flag, "-")
	for i, part := range parts[1:] {
		parts[i+1] = string(unicode.ToUpper(rune(part[0]))) + part[1:]
	}
	return strings.Join(parts, "")
}
