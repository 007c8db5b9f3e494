package controlplane

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/freeze"
	"github.com/sonde-mesh/sonde/controller/leader"
	"github.com/sonde-mesh/sonde/restartbudget"
	"github.com/sonde-mesh/sonde/webhook"
)

// DefaultBindAddress stands for all addresses of the host, IPv4 and IPv6.
const DefaultBindAddress = "*"

// MaxShutdownDelay is shorter than the time that Kubernetes gives a pod to stop.
const MaxShutdownDelay = 20 * time.Second

// DefaultConnectionAge and its limits. A shorter age would cost more than it helps: each connection needs a handshake,
// and may last for ageGrace longer. With a longer age, streams would stay for more than a day at the replica to which a
// restart has moved them. The certificates of most proxies expire earlier.
const (
	DefaultConnectionAge = 30 * time.Minute
	MinConnectionAge     = time.Minute
	MaxConnectionAge     = 24 * time.Hour
	// AllowedConnectionAge describes the allowed values in errors.
	AllowedConnectionAge = "must be from 1m to 24h"
)

// storeDirPrefix is the prefix of a directory in Options.Store.
const (
	storeDirPrefix  = "dir:"
	storeKubernetes = "kubernetes"
)

// Options of a ControlPlane.
type Options struct {
	// Store is the source of objects: "dir:PATH", a directory of YAML files, or "kubernetes". Required.
	Store string
	// StateDir is the directory for keys, tokens, and records of certificates and drains, created with mode 0700. Required
	// for a directory of files. On Kubernetes, keys and tokens are in Secrets, and there are no records.
	StateDir string
	// Kubernetes has the options of Store "kubernetes".
	Kubernetes Kubernetes
	// TrustDomain is the suffix of all trust domains. Default mesh.DefaultTrustDomain.
	TrustDomain string
	// BindAddress is the IP address of all listeners, or DefaultBindAddress, the default.
	BindAddress string
	// AgentsPort is for agents and ADS, AdminPort for sondectl, HealthPort for health and metrics. 0 means a free port,
	// which is then in the file addresses.json in StateDir.
	AgentsPort, AdminPort, HealthPort uint16
	// HealthAddress is host:port for health and metrics, if it differs from BindAddress and HealthPort. An empty host or
	// DefaultBindAddress means all addresses. Default: BindAddress and HealthPort.
	HealthAddress string
	// ShutdownDelay is how long the control plane keeps serving after a request to stop, while it is not Ready: clients
	// need some time to notice. Default 0; at most MaxShutdownDelay.
	ShutdownDelay time.Duration
	// ConnectionAge is the maximum age of a connection of an agent or an Envoy, plus or minus a tenth. Then the client
	// opens another one, perhaps to another replica. Default DefaultConnectionAge; from MinConnectionAge to
	// MaxConnectionAge.
	ConnectionAge time.Duration
	// WebhookPort is for the API server, only with Store "kubernetes". 0 means a free port.
	WebhookPort uint16
	// PeerPort is for the other replicas, only with Store "kubernetes". 0 means a free port.
	PeerPort uint16
	// ProbesMode of pods and Dataplanes if neither they nor their namespace set it. Default unified.
	ProbesMode mesh.ProbesMode
	// Memory is the memory limit of the process in bytes. It also limits unauthenticated connections. Default 512 MiB.
	Memory uint64
	// OpenFiles is the limit of file descriptors of the process, which all its ports share. Default: no limit.
	OpenFiles int
	// Version of the program, for agents.
	Version string
	// Logger, default none.
	Logger *slog.Logger
	// Listen opens the listeners. Default: net.ListenConfig.Listen.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Dial connects to the listener for agents, for readiness. Default: net.Dialer.DialContext.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// loopLimit is the limit of one round of a loop. Default defaultLoopLimit.
	loopLimit time.Duration
	// now is the clock of certificates. Default time.Now.
	now func() time.Time
	// addresses of this host. Default: net.InterfaceAddrs.
	addresses func() ([]net.Addr, error)
	// watcher reports changes of files. Default: as in store.DirOptions.
	watcher func() (*fsnotify.Watcher, error)
}

// Kubernetes has the options of a control plane on Kubernetes.
type Kubernetes struct {
	// Kubeconfig is a file with the address of the API server. Default: the configuration of a pod.
	Kubeconfig string
	// Namespace of the control plane, for its Secrets and its Lease. Default webhook.DefaultNamespace.
	Namespace string
	// Service is the name of its Service. Default DefaultService.
	Service string
	// Replica is the name of this replica, such as its pod's. Default the name of the host.
	Replica string
	// WebhookConfiguration is the name of the MutatingWebhookConfiguration and of the ValidatingWebhookConfiguration
	// whose caBundle the control plane writes. Default: it writes none.
	WebhookConfiguration string
	// WebhookCertDir is a directory with tls.crt, tls.key and ca.crt of the webhook, which another program renews. The
	// webhook configurations get ca.crt, which is optional without WebhookConfiguration. Default: the control plane signs
	// the certificate.
	WebhookCertDir string
	// Election has the times of the leader election.
	Election leader.Times
	// Drain decides which proxies should get no new traffic.
	Drain Drain
	// GuardedLiveness decides which containers with failing guarded liveness probes may restart. It is the initial value
	// of Live.GuardedLiveness.
	GuardedLiveness restartbudget.Settings
	// LivenessHold is the kubelet's answer in place of a held failure of a liveness probe. Default mesh.HoldErrored. It is
	// the initial value of Live.LivenessHold.
	LivenessHold mesh.LivenessHold
	// FreezeMode says what verdicts about unreachable nodes and proxies do. Default freeze.Enforce. It is the initial
	// value of Live.FreezeMode.
	FreezeMode freeze.Mode
	// Injection has the options of injection; errors name its fields. The control plane sets its ProbesMode,
	// ControlPlaneCA and ControlPlaneNamespace.
	Injection webhook.Options
}

// Drain decides which proxies should get no new traffic. The zero value is usable.
type Drain struct {
	// Taints are the keys of taints that announce a node's removal, in addition to source.DefaultTaints.
	Taints []string
	// Conditions are the types of node conditions that announce a node's removal, in addition to
	// source.DefaultConditions.
	Conditions []string
	// MinServing is the minimum number of proxies that keep serving for a Service with a port for load balancers, see
	// source.Drains. Default 0, no minimum.
	MinServing int
	// IgnoreNodes is the initial setting, see Live.IgnoreNodes.
	IgnoreNodes bool
}

// Live has the options that may change while the control plane runs, see ControlPlane.Reconfigure.
type Live struct {
	// IgnoreNodes says that the removal of a node does not drain its proxies.
	IgnoreNodes bool
	// These three must be valid.
	GuardedLiveness restartbudget.Settings
	LivenessHold    mesh.LivenessHold
	FreezeMode      freeze.Mode
}

// Equal reports whether two Live are the same.
func (l Live) Equal(o Live) bool {
	return l.IgnoreNodes == o.IgnoreNodes && l.FreezeMode == o.FreezeMode && l.LivenessHold == o.LivenessHold &&
		l.GuardedLiveness.Equal(o.GuardedLiveness)
}

// DefaultService is the default of Kubernetes.Service.
const DefaultService = "sonde-cp"

func (o *Options) onKubernetes() bool { return o.Store == storeKubernetes }

// withDefaults sets the default of each option that is not set.
func (o Options) withDefaults() Options {
	o.TrustDomain = cmp.Or(o.TrustDomain, mesh.DefaultTrustDomain)
	o.BindAddress = cmp.Or(o.BindAddress, DefaultBindAddress)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.ProbesMode = cmp.Or(o.ProbesMode, mesh.ProbesUnified)
	if o.Listen == nil {
		o.Listen = new(net.ListenConfig).Listen
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	o.ConnectionAge = cmp.Or(o.ConnectionAge, DefaultConnectionAge)
	o.loopLimit = cmp.Or(o.loopLimit, defaultLoopLimit)
	if o.now == nil {
		o.now = time.Now
	}
	if o.addresses == nil {
		o.addresses = net.InterfaceAddrs
	}
	k := &o.Kubernetes
	k.Namespace, k.Service = cmp.Or(k.Namespace, webhook.DefaultNamespace), cmp.Or(k.Service, DefaultService)
	k.Injection.ProbesMode = o.ProbesMode
	k.Injection.ControlPlane = cmp.Or(k.Injection.ControlPlane,
		net.JoinHostPort(k.Service+"."+k.Namespace+".svc", strconv.Itoa(mesh.PortAgents)))
	if k.Replica == "" {
		k.Replica, _ = os.Hostname() // Validate reports an empty name
	}
	return o
}

// storeDirectory returns the PATH of dir:PATH.
func (o *Options) storeDirectory() string { return strings.TrimPrefix(o.Store, storeDirPrefix) }

// trustDomainName matches a DNS name in lower case, as SPIFFE-ID §2.1 allows and certificates need.
var trustDomainName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// Validate returns all violations, joined. Each is a *mesh.FieldError that names a field of Options.
func (o *Options) Validate() error {
	var errs []error
	refuse := func(field, value, allowed string) {
		errs = append(errs, &mesh.FieldError{Field: field, Value: value, Allowed: allowed})
	}
	path, isDirectory := strings.CutPrefix(o.Store, storeDirPrefix)
	if !o.onKubernetes() && (!isDirectory || path == "") {
		refuse("Store", o.Store, "must be dir:PATH or "+storeKubernetes)
	}
	if o.StateDir == "" && !o.onKubernetes() {
		refuse("StateDir", o.StateDir, "must be a directory")
	}
	// also if Store is not kubernetes, so that mistakes show early
	errs = append(errs, o.Kubernetes.validate())
	if _, err := mesh.ParseProbesMode(string(o.ProbesMode)); o.ProbesMode != "" && err != nil {
		refuse("ProbesMode", string(o.ProbesMode), err.Error())
	}
	if d := o.TrustDomain; d != "" && (len(d) > 128 || !trustDomainName.MatchString(d)) {
		refuse("TrustDomain", d, "must be a DNS name in lower case of at most 128 characters")
	}
	if a := o.BindAddress; a != "" && a != DefaultBindAddress && net.ParseIP(a) == nil {
		refuse("BindAddress", a, "must be an IP address, or * for all addresses")
	}
	return errors.Join(append(errs, o.validateHealthAddress(), o.validateShutdownDelay(), o.validateConnectionAge())...)
}

// validateHealthAddress checks the address, and that no other listener has its port: the system's error would only say
// that the port is in use.
func (o *Options) validateHealthAddress() error {
	if o.HealthAddress == "" {
		return nil
	}
	refuse := func(allowed string) error {
		return &mesh.FieldError{Field: "HealthAddress", Value: o.HealthAddress, Allowed: allowed}
	}
	host, port, err := net.SplitHostPort(o.HealthAddress)
	number, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || host != "" && host != DefaultBindAddress && net.ParseIP(host) == nil {
		return refuse("must be host:port, with an IP address or * for the host, and a port from 0 to 65535")
	}
	for name, other := range map[string]uint16{"agents": o.AgentsPort, "admin": o.AdminPort, "the webhook": o.WebhookPort,
		"replicas": o.PeerPort} {
		if number != 0 && number == uint64(other) && (name != "the webhook" && name != "replicas" || o.onKubernetes()) {
			return refuse("must not have the port for " + name)
		}
	}
	return nil
}

func (o *Options) validateShutdownDelay() error {
	if d := o.ShutdownDelay; d < 0 || d > MaxShutdownDelay {
		return &mesh.FieldError{Field: "ShutdownDelay", Value: d.String(),
			Allowed: "must be from 0s to " + MaxShutdownDelay.String()}
	}
	return nil
}

func (o *Options) validateConnectionAge() error {
	if d := o.ConnectionAge; d != 0 && (d < MinConnectionAge || d > MaxConnectionAge) {
		return &mesh.FieldError{Field: "ConnectionAge", Value: d.String(), Allowed: AllowedConnectionAge}
	}
	return nil
}

func (k *Kubernetes) validate() error {
	var errs []error
	for field, name := range map[string]string{"Kubernetes.Namespace": k.Namespace, "Kubernetes.Service": k.Service} {
		if name != "" && len(validation.IsDNS1123Label(name)) > 0 {
			errs = append(errs, &mesh.FieldError{Field: field, Value: name, Allowed: "must be a DNS label"})
		}
	}
	if m := k.FreezeMode; m != "" && !slices.Contains(freeze.Modes(), m) {
		errs = append(errs, &mesh.FieldError{Field: "Kubernetes.FreezeMode", Value: string(m), Allowed: freeze.AllowedMode})
	}
	if _, err := mesh.ParseLivenessHold(string(k.LivenessHold)); k.LivenessHold != "" && err != nil {
		errs = append(errs, &mesh.FieldError{Field: "Kubernetes.LivenessHold", Value: string(k.LivenessHold),
			Allowed: mesh.AllowedLivenessHold})
	}
	return errors.Join(append(errs, k.Drain.validate(), validateGuardedLiveness(k.GuardedLiveness), k.validateReplica(),
		k.Injection.Validate())...)
}

func (d *Drain) validate() error {
	var errs []error
	for _, key := range d.Taints {
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			errs = append(errs, &mesh.FieldError{Field: "Kubernetes.Drain.Taints", Value: key,
				Allowed: "must be keys of taints: " + strings.Join(problems, "; ")})
		}
	}
	for _, kind := range d.Conditions {
		problems := validation.IsQualifiedName(kind)
		if kind == string(corev1.NodeReady) {
			problems = []string{"Ready is True for each healthy node"}
		}
		if len(problems) > 0 {
			errs = append(errs, &mesh.FieldError{
				Field: "Kubernetes.Drain.Conditions", Value: kind, Allowed: "must be types of conditions of nodes: " +
					strings.Join(problems, "; "),
			})
		}
	}
	if n := d.MinServing; n < 0 {
		errs = append(errs, &mesh.FieldError{Field: "Kubernetes.Drain.MinServing", Value: strconv.Itoa(n),
			Allowed: "must be 0, for no limit, or more"})
	}
	return errors.Join(errs...)
}

// validateGuardedLiveness returns the errors of s as errors of fields of Options.
func validateGuardedLiveness(s restartbudget.Settings) error {
	joined, _ := s.Validate().(interface{ Unwrap() []error })
	if joined == nil {
		return nil
	}
	var errs []error
	for _, err := range joined.Unwrap() {
		if wrong, ok := errors.AsType[*restartbudget.SettingError](err); ok {
			err = &mesh.FieldError{Field: "Kubernetes.GuardedLiveness." + wrong.Setting, Value: wrong.Value,
				Allowed: wrong.Allowed}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
