package main

import (
	"errors"
	"log/slog"
	"net"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/internal/logging"
	"github.com/sonde-mesh/sonde/internal/reach"
	"github.com/sonde-mesh/sonde/internal/settings"
	"github.com/sonde-mesh/sonde/webhook"
)

// options holds the values of the flags. A key of the --config file or an environment variable can set each flag, too.
type options struct {
	controlplane.Options
	// kumaLabels is the opposite of Kubernetes.Injection.OwnLabelOnly.
	kumaLabels bool
	form       string
	// drainAware is the opposite of Kubernetes.Drain.IgnoreNodes.
	drainAware bool
	probesMode string
	logLevel   slog.Level
	logFormat  logging.Format
	config     string
}

// envPrefix begins the names of the environment variables that set flags.
const envPrefix = "SONDE_CP_"

// storeKubernetes is the value of --store on Kubernetes.
const storeKubernetes = "kubernetes"

// keyDrainAware is the flag of drain-aware load balancer checks, which is reloaded when the --config file changes.
const keyDrainAware = "drain-aware-healthz"

// flagOf maps the fields of controlplane.Options, which errors name, to flags.
var flagOf = map[string]string{
	"Store": "--store", "StateDir": "--state-dir", "TrustDomain": "--trust-domain", "BindAddress": "--bind-address",
	"AgentsPort": "--agents-port", "AdminPort": "--admin-port", "HealthPort": "--health-port",
	"HealthAddress": "--health-addr", "ShutdownDelay": "--shutdown-delay", "ConnectionAge": "--connection-age",
	"WebhookPort": "--webhook-port", "PeerPort": "--peer-port",
	"Kubernetes.Kubeconfig": "--kubeconfig", "Kubernetes.Namespace": "--namespace",
	"Kubernetes.Service": "--service-name", "Kubernetes.Replica": "--replica",
	"Kubernetes.WebhookCertDir": "--webhook-cert-dir",
	"Image":                     "--sidecar-image", "Sidecar": "--sidecar-form", "CNI": "--cni",
	"VirtualProbesPort": "--virtual-probes-port", "ProbesMode": "--virtual-probes-mode",
	"ControlPlane": "--control-plane-address",
	"MetricsPort":  "--sidecar-metrics-port", "MetricsInclude": "--sidecar-metrics-include",
	"Resources.CPU": "--sidecar-cpu", "Resources.CPULimit": "--sidecar-cpu-limit",
	"Resources.Memory": "--sidecar-memory", "Resources.MemoryLimit": "--sidecar-memory-limit",
	"Kubernetes.Drain.Taints": "--drain-taints", "Kubernetes.Drain.Conditions": "--drain-conditions",
	"Kubernetes.Drain.MinServing":                     "--min-serving",
	"Kubernetes.FreezeMode":                           "--" + flagFreezeMode,
	"Kubernetes.LivenessHold":                         "--" + flagGuardedHold,
	"Kubernetes.GuardedLiveness.Mode":                 "--" + flagGuardedMode,
	"Kubernetes.GuardedLiveness.PerMinute":            "--" + flagGuardedPerMinute,
	"Kubernetes.GuardedLiveness.PerNodePerMinute":     "--" + flagGuardedPerNode,
	"Kubernetes.GuardedLiveness.Blacklist.Namespaces": "--" + flagGuardedNamespaces,
	"Kubernetes.GuardedLiveness.Blacklist.Workloads":  "--" + flagGuardedWorkloads,
	"Kubernetes.GuardedLiveness.Blacklist.Images":     "--" + flagGuardedImages,
	"Kubernetes.GuardedLiveness.Breaker.Workloads":    "--" + flagBreakerWorkloads,
	"Kubernetes.GuardedLiveness.Breaker.Percent":      "--" + flagBreakerPercent,
}

// nested maps flags to the keys above theirs in the --config file. Other flags have top-level keys.
var nested = settings.Keys{
	"kubeconfig": "runtime.kubernetes.", "namespace": "runtime.kubernetes.", "service-name": "runtime.kubernetes.",
	"replica": "runtime.kubernetes.", "webhook-port": "runtime.kubernetes.", "peer-port": "runtime.kubernetes.",
	"webhook-configuration": "runtime.kubernetes.", "webhook-cert-dir": "runtime.kubernetes.",
	"cni":           "runtime.kubernetes.injector.",
	"sidecar-image": "runtime.kubernetes.injector.", "sidecar-form": "runtime.kubernetes.injector.",
	"sidecar-cpu": "runtime.kubernetes.injector.", "sidecar-cpu-limit": "runtime.kubernetes.injector.",
	"sidecar-memory": "runtime.kubernetes.injector.", "sidecar-memory-limit": "runtime.kubernetes.injector.",
	"sidecar-metrics-port": "runtime.kubernetes.injector.", "sidecar-metrics-include": "runtime.kubernetes.injector.",
	"virtual-probes-port": "runtime.kubernetes.injector.", "control-plane-address": "runtime.kubernetes.injector.",
	"kuma-labels":         "injection.",
	flagGuardedMode:       "guardedLiveness.mode",
	flagGuardedHold:       "guardedLiveness.hold",
	flagGuardedPerMinute:  "guardedLiveness.perMinute",
	flagGuardedPerNode:    "guardedLiveness.perNodePerMinute",
	flagGuardedNamespaces: "guardedLiveness.blacklist.namespaces",
	flagGuardedWorkloads:  "guardedLiveness.blacklist.workloads",
	flagGuardedImages:     "guardedLiveness.blacklist.images",
	flagFreezeMode:        "freeze.mode",
	flagBreakerWorkloads:  "guardedLiveness.breaker.workloads",
	flagBreakerPercent:    "guardedLiveness.breaker.percent",
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.config, "config", "", "YAML `FILE` with these flags as keys (stateDir for state-dir). A flag takes precedence over its variable (SONDE_CP_STATE_DIR), which takes precedence over its key")
	flags.StringVar(&o.Store, "store", "", "source of objects: dir:`PATH`, a directory of YAML files, or kubernetes")
	flags.StringVar(&o.StateDir, "state-dir", "/var/lib/sonde", "`DIRECTORY` for keys and other state, created with mode 0700; an existing directory must be empty or have been used by a control plane")
	flags.StringVar(&o.TrustDomain, "trust-domain", mesh.DefaultTrustDomain, "`SUFFIX` of the trust domains of all meshes")
	flags.StringVar(&o.BindAddress, "bind-address", controlplane.DefaultBindAddress, "`IP` address of all listeners; * means all addresses of the host")
	flags.Uint16Var(&o.AgentsPort, "agents-port", mesh.PortAgents, "`PORT` for agents and ADS, mTLS; 0 means a free one")
	flags.Uint16Var(&o.AdminPort, "admin-port", mesh.PortAdmin, "`PORT` for sondectl, TLS and token; 0 means a free one")
	flags.Uint16Var(&o.HealthPort, "health-port", mesh.PortHealth, "`PORT` for /livez, /readyz and /metrics, plain HTTP; 0 means a free one")
	flags.StringVar(&o.HealthAddress, "health-addr", "", "`HOST:PORT` for /livez, /readyz and /metrics instead of --bind-address and --health-port; *:PORT means all addresses")
	flags.DurationVar(&o.ShutdownDelay, "shutdown-delay", 0, "`DURATION` for which the control plane keeps serving after a signal to stop, while it reports that it is not ready")
	flags.DurationVar(&o.ConnectionAge, "connection-age", controlplane.DefaultConnectionAge, "`DURATION`, plus or minus a tenth, after which the control plane closes a connection of an agent or an Envoy, which then reconnects, perhaps to another replica; from 1m to 24h")
	o.addKubernetesFlags(flags)
	flags.StringVar(&o.probesMode, "virtual-probes-mode", string(mesh.ProbesUnified),
		"default `MODE` of probes for pods, namespaces and Dataplanes that set none: unified, where the agent answers on one port, or per-port, with one port for each gRPC and TCP probe; injected pods keep their mode")
	settings.LevelVar(flags, &o.logLevel, "")
	settings.LogFormatVar(flags, &o.logFormat)
}

func (o *options) addKubernetesFlags(flags *pflag.FlagSet) {
	k := &o.Kubernetes
	flags.StringVar(&k.Kubeconfig, "kubeconfig", "", "kubeconfig `FILE`; without it the control plane uses the in-cluster configuration")
	flags.StringVar(&k.Namespace, "namespace", webhook.DefaultNamespace, "`NAMESPACE` of the control plane, for its Secrets and its Lease")
	flags.StringVar(&k.Service, "service-name", controlplane.DefaultService, "`NAME` of the control plane's Service")
	flags.StringVar(&k.Replica, "replica", "", "`NAME` of this replica; default the host name, which is the pod's name")
	flags.StringVar(&k.WebhookConfiguration, "webhook-configuration", "", "`NAME` of the webhook configurations into which the control plane writes the CA; default none")
	flags.StringVar(&k.WebhookCertDir, "webhook-cert-dir", "", "`DIRECTORY` with tls.crt, tls.key and ca.crt of the webhook, reloaded when they change; default a certificate of the control plane's own CA")
	flags.Uint16Var(&o.WebhookPort, "webhook-port", mesh.PortWebhook, "`PORT` for the API server, TLS; 0 means a free one")
	flags.Uint16Var(&o.PeerPort, "peer-port", mesh.PortPeers, "`PORT` for the other replicas, mTLS; 0 means a free one")
	flags.StringVar(&k.Injection.Image, "sidecar-image", webhook.DefaultImage, "`IMAGE` of kuma-init and kuma-sidecar")
	flags.StringVar(&o.form, "sidecar-form", string(webhook.Native), "`FORM` of the sidecar: native or container")
	flags.StringVar((*string)(&k.Injection.CNI), "cni", string(webhook.CNIOff),
		"`PODS` with a native sidecar whose connections sonde-cni redirects instead of kuma-init: off, none; namespaces, pods in namespaces with sonde.dev/cni: enabled; or all, except in namespaces with sonde.dev/cni: disabled")
	k.Injection.Resources.AddFlags(flags)
	flags.Int32Var(&k.Injection.VirtualProbesPort, "virtual-probes-port", mesh.PortVirtualProbes, "`PORT` of the agent for probes; a pod's annotation takes precedence")
	k.Injection.AddMetricsFlags(flags)
	flags.Var(&reach.AddressFlag{Service: reach.Agents, To: &k.Injection.ControlPlane}, "control-plane-address", "`HOST:PORT` of the control plane for agents; default its Service")
	flags.BoolVar(&o.drainAware, keyDrainAware, true, "proxies on nodes that are about to be removed fail the checks of load balancers, which then send no new traffic; reloaded when the --config file changes")
	flags.StringSliceVar(&k.Drain.Taints, "drain-taints", nil, "`KEYS` of taints that mark nodes about to be removed, in addition to the cluster autoscaler's and Karpenter's")
	flags.StringSliceVar(&k.Drain.Conditions, "drain-conditions", nil,
		"`TYPES` of conditions that mark nodes about to be removed, such as MaintenanceInProgress, in addition to GracefulNodeShutdownInProgress, DrainInProgress and Drained")
	flags.IntVar(&k.Drain.MinServing, "min-serving", 1, "minimum `NUMBER` of proxies of a Service that keep passing the checks of load balancers even if all drain; 0 means none")
	addGuardedFlags(flags, &k.GuardedLiveness, &k.LivenessHold)
	addFreezeFlags(flags, &k.FreezeMode)
	flags.BoolVar(&o.kumaLabels, "kuma-labels", true, "read kuma.io/sidecar-injection; set to false if a Kuma in the cluster does")
}

// validate returns all invalid values, joined. Each error names the flag.
func (o *options) validate(flags *pflag.FlagSet) error {
	o.Kubernetes.Injection.Sidecar, o.Kubernetes.Injection.OwnLabelOnly = webhook.Form(o.form), !o.kumaLabels
	o.Kubernetes.Drain.IgnoreNodes = !o.drainAware
	o.ProbesMode = mesh.ProbesMode(o.probesMode)
	errs := []error{mesh.RenameFields(o.Validate(), flagOf)}
	// An unset variable in a script makes the value empty, which must not mean the default.
	for _, flag := range []string{
		"trust-domain", "bind-address", "namespace", "service-name", "sidecar-image", "sidecar-form", "cni",
		"virtual-probes-mode", flagGuardedMode, flagFreezeMode,
	} {
		if flags.Lookup(flag).Value.String() == "" {
			errs = append(errs, &mesh.FieldError{Field: "--" + flag, Allowed: "must not be empty"})
		}
	}
	if o.ConnectionAge == 0 { // controlplane.Options replaces 0 by the default
		errs = append(errs, &mesh.FieldError{
			Field: "--connection-age", Value: "0s", Allowed: controlplane.AllowedConnectionAge,
		})
	}
	if flags.Changed("health-addr") && flags.Changed("health-port") {
		errs = append(errs, &mesh.FieldError{
			Field: "--health-addr", Value: o.HealthAddress, Allowed: "must not be given with --health-port",
		})
	}
	if flags.Changed("peer-port") && o.Store != storeKubernetes {
		errs = append(errs, &mesh.FieldError{Field: "--peer-port", Value: strconv.Itoa(int(o.PeerPort)), Allowed: "must not be given with --store=dir:PATH, where the control plane has one replica"})
	}
	if o.Kubernetes.Injection.VirtualProbesPort == 0 {
		// The kernel cannot choose this port: the webhook writes it into the probes of pods before an agent listens.
		errs = append(errs, &mesh.FieldError{Field: "--virtual-probes-port", Value: "0", Allowed: mesh.AllowedPort + ": the webhook writes this port into the probes of pods"})
	}
	return errors.Join(append(errs, o.validateControlPlane(), o.validateBreaker())...)
}

// validateControlPlane rejects a --control-plane-address with one of the control plane's other ports: agents would
// start but never join.
func (o *options) validateControlPlane() error {
	address := o.Kubernetes.Injection.ControlPlane
	_, port, _ := net.SplitHostPort(address)
	if other := reach.Usual(port); other != nil && *other != reach.Agents && port != strconv.Itoa(int(o.AgentsPort)) {
		return &mesh.FieldError{Field: "--control-plane-address", Value: address, Allowed: reach.Agents.WrongPort(*other)}
	}
	return nil
}
