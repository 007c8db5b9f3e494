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

// MaxShutdownDelay is less than what Kubernetes gives a pod to end.
const MaxShutdownDelay = 20 * time.Second

// DefaultConnectionAge and its limits. A shorter age would cost more than it spreads: each connection is a handshake, and lasts for up to ageGrace longer.
// A longer one would have streams stay where a restart has put them for more than a day; the certificates of most proxies end before.
const (
	DefaultConnectionAge = 30 * time.Minute
	MinConnectionAge     = time.Minute
	MaxConnectionAge     = 24 * time.Hour
	// AllowedConnectionAge is for errors.
	AllowedConnectionAge = "must be from 1m to 24h"
)

// storeDirPrefix is the prefix of a directory in Options.Store.
const (
	storeDirPrefix  = "dir:"
	storeKubernetes = "kubernetes"
)

// Options of a ControlPlane.
type Options struct {
	// Store is where objects come from: "dir:PATH", a directory of YAML files, or "kubernetes". Required.
	Store string
	// StateDir is the directory for keys, tokens, records of certificates and of drains. It is made with mode 0700. Required for a
	// directory of files; on Kubernetes keys and tokens are in Secrets, and nothing is recorded.
	StateDir string
	// Kubernetes has the options of Store "kubernetes".
	Kubernetes Kubernetes
	// TrustDomain is the suffix of all trust domains. Default mesh.DefaultTrustDomain.
	TrustDomain string
	// BindAddress is the IP address of all listeners, or DefaultBindAddress, the default.
	BindAddress string
	// AgentsPort is for agents and ADS, AdminPort for sondectl, HealthPort for health and metrics. 0 means a free port, which
	// is then in the file addresses.json in StateDir.
	AgentsPort, AdminPort, HealthPort uint16
	// HealthAddress is host:port for health and metrics, where that is not BindAddress and HealthPort. The host may be empty or
	// DefaultBindAddress for all addresses. Default: these.
	HealthAddress string
	// ShutdownDelay is how long the control plane, not ready any more, still serves once it is to end: clients take a while to hear
	// of it. Default 0; at most MaxShutdownDelay.
	ShutdownDelay time.Duration
	// ConnectionAge is how old a connection of an agent or an Envoy may become, give or take a tenth: then the client opens another one, perhaps to
	// another replica. Default DefaultConnectionAge; from MinConnectionAge to MaxConnectionAge.
	ConnectionAge time.Duration
	// WebhookPort is for the API server, with Store "kubernetes" alone. 0 means a free port.
	WebhookPort uint16
	// PeerPort is for the other replicas, with Store "kubernetes" alone. 0 means a free port.
	PeerPort uint16
	// ProbesMode of pods and Dataplanes where they and their namespace name none. Default unified.
	ProbesMode mesh.ProbesMode
	// Memory is how many bytes the process may use: it limits how many unauthenticated clients may be connected. Default 512 MiB.
	Memory uint64
	// OpenFiles is how many file descriptors the process may open, which its ports share. Default: no limit.
	OpenFiles int
	// Version of the program, to tell agents.
	Version string
	// Logger, default none.
	Logger *slog.Logger
	// Listen opens the listeners. Default: net.ListenConfig.Listen.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Dial connects to the listener for agents, for readiness. Default: net.Dialer.DialContext.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// loopLimit is how long a turn of a loop may take. Default defaultLoopLimit.
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
	// Kubeconfig is a file with the address of the API server. Default: the control plane is a pod.
	Kubeconfig string
	// Namespace of the control plane, for its Secrets and its Lease. Default webhook.DefaultNamespace.
	Namespace string
	// Service is the name of its Service. Default DefaultService.
	Service string
	// Replica is the name of this replica, such as its pod's. Default the name of the host.
	Replica string
	// WebhookConfiguration is the name of the webhook configurations into which the CA is written. Default: into none.
	WebhookConfiguration string
	// WebhookCertDir is a directory with tls.crt, tls.key and ca.crt of the webhook, which another program renews. ca.crt is what is
	// written into the webhook configurations, and need not be there if nothing is. Default: the control plane's own CA signs it.
	WebhookCertDir string
	// Election has the times after which another replica leads.
	Election leader.Times
	// Drain says which proxies should get no new traffic.
	Drain Drain
	// GuardedLiveness says which containers may restart whose guarded liveness probes fail. It is that of Live, at the start.
	GuardedLiveness restartbudget.Settings
	// FreezeMode says what becomes of verdicts about the sight of the mesh. Default freeze.Enforce. It is that of Live, at the start.
	FreezeMode freeze.Mode
	// Injection says what pods get; errors name its fields. Its ProbesMode, ControlPlaneCA and ControlPlaneNamespace are set by the
	// control plane.
	Injection webhook.Options
}

// Drain says which proxies should get no new traffic. The zero value is usable.
type Drain struct {
	// Taints are keys of taints of nodes that go, beside source.DefaultTaints.
	Taints []string
	// Conditions are types of conditions of nodes that go, beside source.DefaultConditions.
	Conditions []string
	// MinServing is how many proxies of a Service with a port for load balancers must be left, see source.Drains. Default 0, no limit.
	MinServing int
	// IgnoreNodes is that of Live, at the start.
	IgnoreNodes bool
}

// Live has the options that may change while the control plane runs, see ControlPlane.Reconfigure.
type Live struct {
	// IgnoreNodes says that a node that goes is no reason to drain its proxies.
	IgnoreNodes bool
	// GuardedLiveness and FreezeMode must be valid.
	GuardedLiveness restartbudget.Settings
	FreezeMode      freeze.Mode
}

// Equal reports whether two Live are the same.
func (l Live) Equal(o Live) bool {
	return l.IgnoreNodes == o.IgnoreNodes && l.FreezeMode == o.FreezeMode && l.GuardedLiveness.Equal(o.GuardedLiveness)
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
		k.Replica, _ = os.Hostname() // New reports an empty one
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
	errs = append(errs, o.Kubernetes.validate()) // with another store, too: what is wrong in a configuration should not wait
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

// validateHealthAddress checks the address, and that no other listener has its port: the system would say only that it is in use.
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
	for name, other := range map[string]uint16{"agents": o.AgentsPort, "admin": o.AdminPort, "the webhook": o.WebhookPort, "replicas": o.PeerPort} {
		if number != 0 && number == uint64(other) && (name != "the webhook" && name != "replicas" || o.onKubernetes()) {
			return refuse("must have another port than that for " + name)
		}
	}
	return nil
}

func (o *Options) validateShutdownDelay() error {
	if d := o.ShutdownDelay; d < 0 || d > MaxShutdownDelay {
		return &mesh.FieldError{Field: "ShutdownDelay", Value: d.String(), Allowed: "must be from 0s to " + MaxShutdownDelay.String()}
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
	return errors.Join(append(errs, k.Drain.validate(), validateGuardedLiveness(k.GuardedLiveness), k.validateReplica(), k.Injection.Validate())...)
}

func (d *Drain) validate() error {
	var errs []error
	for _, key := range d.Taints {
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			errs = append(errs, &mesh.FieldError{Field: "Kubernetes.Drain.Taints", Value: key, Allowed: "must be keys of taints: " + strings.Join(problems, "; ")})
		}
	}
	for _, kind := range d.Conditions {
		problems := validation.IsQualifiedName(kind)
		if kind == string(corev1.NodeReady) {
			problems = []string{"Ready is True of each node that is well"}
		}
		if len(problems) > 0 {
			errs = append(errs, &mesh.FieldError{
				Field: "Kubernetes.Drain.Conditions", Value: kind, Allowed: "must be types of conditions of nodes: " + strings.Join(problems, "; "),
			})
		}
	}
	if n := d.MinServing; n < 0 {
		errs = append(errs, &mesh.FieldError{Field: "Kubernetes.Drain.MinServing", Value: strconv.Itoa(n), Allowed: "must be 0, for no limit, or more"})
	}
	return errors.Join(errs...)
}

// validateGuardedLiveness returns the errors of s as those of fields of Options.
func validateGuardedLiveness(s restartbudget.Settings) error {
	joined, _ := s.Validate().(interface{ Unwrap() []error })
	if joined == nil {
		return nil
	}
	var errs []error
	for _, err := range joined.Unwrap() {
		if wrong, ok := errors.AsType[*restartbudget.SettingError](err); ok {
			err = &mesh.FieldError{Field: "Kubernetes.GuardedLiveness." + wrong.Setting, Value: wrong.Value, Allowed: wrong.Allowed}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
