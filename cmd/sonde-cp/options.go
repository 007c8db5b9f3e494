package main

import (
	"errors"
	"log/slog"
	"net"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/internal/reach"
	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/webhook"
)

// options are the flags. Each is also a key of the --config file, and a variable.
type options struct {
	controlplane.Options
	// kumaLabels is the opposite of Kubernetes.Injection.OwnLabelOnly.
	kumaLabels bool
	form       string
	// drainAware is the opposite of Kubernetes.Drain.IgnoreNodes.
	drainAware bool
	probesMode string
	logLevel   slog.Level
	config     string
}

// envPrefix is what variables begin with.
const envPrefix = "SONDE_CP_"

// storeKubernetes is --store on Kubernetes.
const storeKubernetes = "kubernetes"

// keyDrainAware is the flag whose key is read again when the file changes.
const keyDrainAware = "drain-aware-healthz"

// flagOf has the flag of each field of controlplane.Options that an error may name.
var flagOf = map[string]string{
	"Store": "--store", "StateDir": "--state-dir", "TrustDomain": "--trust-domain", "BindAddress": "--bind-address",
	"AgentsPort": "--agents-port", "AdminPort": "--admin-port", "HealthPort": "--health-port", "HealthAddress": "--health-addr", "ShutdownDelay": "--shutdown-delay",
	"ConnectionAge":         "--connection-age",
	"WebhookPort":           "--webhook-port",
	"PeerPort":              "--peer-port",
	"Kubernetes.Kubeconfig": "--kubeconfig", "Kubernetes.Namespace": "--namespace", "Kubernetes.Service": "--service-name", "Kubernetes.Replica": "--replica",
	"Kubernetes.WebhookCertDir": "--webhook-cert-dir",
	"Image":                     "--sidecar-image", "Sidecar": "--sidecar-form", "VirtualProbesPort": "--virtual-probes-port", "ProbesMode": "--virtual-probes-mode", "ControlPlane": "--control-plane-address",
	"MetricsPort": "--sidecar-metrics-port", "MetricsInclude": "--sidecar-metrics-include",
	"Resources.CPU": "--sidecar-cpu", "Resources.CPULimit": "--sidecar-cpu-limit", "Resources.Memory": "--sidecar-memory", "Resources.MemoryLimit": "--sidecar-memory-limit",
	"Kubernetes.Drain.Taints": "--drain-taints", "Kubernetes.Drain.Conditions": "--drain-conditions", "Kubernetes.Drain.MinServing": "--min-serving",
	"Kubernetes.FreezeMode":           "--" + flagFreezeMode,
	"Kubernetes.GuardedLiveness.Mode": "--" + flagGuardedMode, "Kubernetes.GuardedLiveness.PerMinute": "--" + flagGuardedPerMinute, "Kubernetes.GuardedLiveness.PerNodePerMinute": "--" + flagGuardedPerNode,
	"Kubernetes.GuardedLiveness.Blacklist.Namespaces": "--" + flagGuardedNamespaces, "Kubernetes.GuardedLiveness.Blacklist.Workloads": "--" + flagGuardedWorkloads, "Kubernetes.GuardedLiveness.Blacklist.Images": "--" + flagGuardedImages,
	"Kubernetes.GuardedLiveness.Breaker.Workloads": "--" + flagBreakerWorkloads, "Kubernetes.GuardedLiveness.Breaker.Percent": "--" + flagBreakerPercent,
}

// nested has the keys of flags that are not at the top of the --config file.
var nested = settings.Keys{
	"kubeconfig": "runtime.kubernetes.", "namespace": "runtime.kubernetes.", "service-name": "runtime.kubernetes.",
	"replica": "runtime.kubernetes.", "webhook-port": "runtime.kubernetes.", "peer-port": "runtime.kubernetes.", "webhook-configuration": "runtime.kubernetes.",
	"webhook-cert-dir": "runtime.kubernetes.",
	"sidecar-image":    "runtime.kubernetes.injector.", "sidecar-form": "runtime.kubernetes.injector.",
	"sidecar-cpu": "runtime.kubernetes.injector.", "sidecar-cpu-limit": "runtime.kubernetes.injector.",
	"sidecar-memory": "runtime.kubernetes.injector.", "sidecar-memory-limit": "runtime.kubernetes.injector.",
	"sidecar-metrics-port": "runtime.kubernetes.injector.", "sidecar-metrics-include": "runtime.kubernetes.injector.",
	"virtual-probes-port": "runtime.kubernetes.injector.", "control-plane-address": "runtime.kubernetes.injector.",
	"kuma-labels":   "injection.",
	flagGuardedMode: "guardedLiveness.mode", flagGuardedPerMinute: "guardedLiveness.perMinute", flagGuardedPerNode: "guardedLiveness.perNodePerMinute",
	flagGuardedNamespaces: "guardedLiveness.blacklist.namespaces", flagGuardedWorkloads: "guardedLiveness.blacklist.workloads", flagGuardedImages: "guardedLiveness.blacklist.images",
	flagFreezeMode:       "freeze.mode",
	flagBreakerWorkloads: "guardedLiveness.breaker.workloads", flagBreakerPercent: "guardedLiveness.breaker.percent",
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.config, "config", "", "YAML `FILE` with these flags as keys (stateDir for state-dir). A flag takes precedence over its variable (SONDE_CP_STATE_DIR), and that over its key")
	flags.StringVar(&o.Store, "store", "", "where objects come from: dir:`PATH`, a directory of YAML files, or kubernetes")
	flags.StringVar(&o.StateDir, "state-dir", "/var/lib/sonde", "`DIRECTORY` for keys and other state, created with mode 0700; one that exists must be empty, or have been used before")
	flags.StringVar(&o.TrustDomain, "trust-domain", mesh.DefaultTrustDomain, "`SUFFIX` of the trust domains of all meshes")
	flags.StringVar(&o.BindAddress, "bind-address", controlplane.DefaultBindAddress, "`IP` address of all listeners; * means all addresses of the host")
	flags.Uint16Var(&o.AgentsPort, "agents-port", mesh.PortAgents, "`PORT` for agents and ADS, mTLS; 0 means a free one")
	flags.Uint16Var(&o.AdminPort, "admin-port", mesh.PortAdmin, "`PORT` for sondectl, TLS and token; 0 means a free one")
	flags.Uint16Var(&o.HealthPort, "health-port", mesh.PortHealth, "`PORT` for /livez, /readyz and /metrics, plain HTTP; 0 means a free one")
	flags.StringVar(&o.HealthAddress, "health-addr", "", "`HOST:PORT` for /livez, /readyz and /metrics instead of --bind-address and --health-port; *:PORT means all addresses")
	flags.DurationVar(&o.ShutdownDelay, "shutdown-delay", 0, "`DURATION` for which the control plane still serves, not ready any more, once it is asked to end")
	flags.DurationVar(&o.ConnectionAge, "connection-age", controlplane.DefaultConnectionAge, "`DURATION` after which a connection of an agent or an Envoy ends, give or take a tenth, and is made again, perhaps to another replica; from 1m to 24h")
	o.addKubernetesFlags(flags)
	flags.StringVar(&o.probesMode, "virtual-probes-mode", string(mesh.ProbesUnified),
		"`MODE` of probes where a pod, its namespace or a Dataplane names none: unified, the agent answers on one port, or per-port, with a port for each gRPC and TCP probe; a pod keeps the mode that it was injected with")
	settings.LevelVar(flags, &o.logLevel, "")
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
	flags.Uint16Var(&o.PeerPort, "peer-port", mesh.PortPeers, "`PORT` for the other replicas, mTLS; 0 means a free one")
	flags.StringVar(&k.Injection.Image, "sidecar-image", webhook.DefaultImage, "`IMAGE` of kuma-init and kuma-sidecar")
	flags.StringVar(&o.form, "sidecar-form", string(webhook.Native), "`FORM` of the sidecar: native or container")
	k.Injection.Resources.AddFlags(flags)
	flags.Int32Var(&k.Injection.VirtualProbesPort, "virtual-probes-port", mesh.PortVirtualProbes, "`PORT` of the agent for probes, unless a pod asks for another one")
	k.Injection.AddMetricsFlags(flags)
	flags.Var(&reach.AddressFlag{Service: reach.Agents, To: &k.Injection.ControlPlane}, "control-plane-address", "`HOST:PORT` of the control plane for agents; default that of its Service")
	flags.BoolVar(&o.drainAware, keyDrainAware, true, "proxies on nodes that go tell load balancers to send no new traffic; read again when the --config file changes")
	flags.StringSliceVar(&k.Drain.Taints, "drain-taints", nil, "`KEYS` of taints of nodes that go, beside those of the cluster autoscaler and Karpenter")
	flags.StringSliceVar(&k.Drain.Conditions, "drain-conditions", nil,
		"`TYPES` of conditions of nodes that go, beside GracefulNodeShutdownInProgress, DrainInProgress and Drained; such as MaintenanceInProgress")
	flags.IntVar(&k.Drain.MinServing, "min-serving", 1, "`NUMBER` of proxies of a Service that go on telling load balancers that they serve, whatever drains them; 0 for none")
	addGuardedFlags(flags, &k.GuardedLiveness)
	addFreezeFlags(flags, &k.FreezeMode)
	flags.BoolVar(&o.kumaLabels, "kuma-labels", true, "read kuma.io/sidecar-injection; false where a Kuma in the cluster does")
}

// validate returns all violations, joined. Each names its flag.
func (o *options) validate(flags *pflag.FlagSet) error {
	o.Kubernetes.Injection.Sidecar, o.Kubernetes.Injection.OwnLabelOnly = webhook.Form(o.form), !o.kumaLabels
	o.Kubernetes.Drain.IgnoreNodes = !o.drainAware
	o.ProbesMode = mesh.ProbesMode(o.probesMode)
	errs := []error{mesh.RenameFields(o.Validate(), flagOf)}
	// A variable of a script that is not set does not ask for the default.
	for _, flag := range []string{"trust-domain", "bind-address", "namespace", "service-name", "sidecar-image", "sidecar-form", "virtual-probes-mode", flagGuardedMode, flagFreezeMode} {
		if flags.Lookup(flag).Value.String() == "" {
			errs = append(errs, &mesh.FieldError{Field: "--" + flag, Allowed: "must not be empty"})
		}
	}
	if o.ConnectionAge == 0 { // which asks for the default elsewhere
		errs = append(errs, &mesh.FieldError{Field: "--connection-age", Value: "0s", Allowed: controlplane.AllowedConnectionAge})
	}
	if flags.Changed("health-addr") && flags.Changed("health-port") {
		errs = append(errs, &mesh.FieldError{Field: "--health-addr", Value: o.HealthAddress, Allowed: "must not be given with --health-port"})
	}
	if flags.Changed("peer-port") && o.Store != storeKubernetes {
		errs = append(errs, &mesh.FieldError{Field: "--peer-port", Value: strconv.Itoa(int(o.PeerPort)), Allowed: "must not be given with a directory of files: there is one control plane then, and no replica"})
	}
	if o.Kubernetes.Injection.VirtualProbesPort == 0 {
		// The kernel cannot choose it: pods are made with probes that name it, long before an agent listens.
		errs = append(errs, &mesh.FieldError{Field: "--virtual-probes-port", Value: "0", Allowed: mesh.AllowedPort + ": the probes of pods name it before an agent listens"})
	}
	return errors.Join(append(errs, o.validateControlPlane(), o.validateBreaker())...)
}

// validateControlPlane refuses an address for agents that is one of the control plane's other ports: agents would start, and never join.
func (o *options) validateControlPlane() error {
	address := o.Kubernetes.Injection.ControlPlane
	_, port, _ := net.SplitHostPort(address)
	if other := reach.Usual(port); other != nil && *other != reach.Agents && port != strconv.Itoa(int(o.AgentsPort)) {
		return &mesh.FieldError{Field: "--control-plane-address", Value: address, Allowed: reach.Agents.WrongPort(*other)}
	}
	return nil
}
