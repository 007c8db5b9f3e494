package controlplane

import (
	"cmp"
	"errors"
	"log/slog"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// DefaultBindAddress stands for all addresses of the host, IPv4 and IPv6.
const DefaultBindAddress = "*"

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
	// WebhookPort is for the API server, with Store "kubernetes" alone. 0 means a free port.
	WebhookPort uint16
	// Version of the program, to tell agents.
	Version string
	// Logger, default none.
	Logger *slog.Logger
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
	// WebhookCertDir is a directory with tls.crt, tls.key and ca.crt of the webhook, which somebody else renews. ca.crt is what is
	// written into the webhook configurations, and need not be there if nothing is. Default: the control plane's own CA signs it.
	WebhookCertDir string
	// Injection says what pods get; errors name its fields. Its ControlPlaneCA and ControlPlaneNamespace are set by the control plane.
	Injection webhook.Options
}

// DefaultService is the default of Kubernetes.Service.
const DefaultService = "sonde-cp"

func (o *Options) onKubernetes() bool { return o.Store == storeKubernetes }

// withDefaults sets the default of each option that is not set.
func (o Options) withDefaults() Options {
	o.TrustDomain = cmp.Or(o.TrustDomain, mesh.DefaultTrustDomain)
	o.BindAddress = cmp.Or(o.BindAddress, DefaultBindAddress)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	k := &o.Kubernetes
	k.Namespace, k.Service = cmp.Or(k.Namespace, webhook.DefaultNamespace), cmp.Or(k.Service, DefaultService)
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
	if o.onKubernetes() {
		errs = append(errs, o.Kubernetes.validate())
	}
	if d := o.TrustDomain; d != "" && (len(d) > 128 || !trustDomainName.MatchString(d)) {
		refuse("TrustDomain", d, "must be a DNS name in lower case of at most 128 characters")
	}
	if a := o.BindAddress; a != "" && a != DefaultBindAddress && net.ParseIP(a) == nil {
		refuse("BindAddress", a, "must be an IP address, or * for all addresses")
	}
	return errors.Join(errs...)
}

func (k *Kubernetes) validate() error {
	var errs []error
	for field, name := range map[string]string{"Kubernetes.Namespace": k.Namespace, "Kubernetes.Service": k.Service} {
		if name != "" && len(validation.IsDNS1123Label(name)) > 0 {
			errs = append(errs, &mesh.FieldError{Field: field, Value: name, Allowed: "must be a DNS label"})
		}
	}
	return errors.Join(append(errs, k.Injection.Validate())...)
}
