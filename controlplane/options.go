package controlplane

import (
	"cmp"
	"errors"
	"log/slog"
	"net"
	"regexp"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// DefaultBindAddress is the default of Options.BindAddress.
const DefaultBindAddress = "0.0.0.0"

// storeDirPrefix is the prefix of a directory in Options.Store.
const storeDirPrefix = "dir:"

// Options of a ControlPlane.
type Options struct {
	// Store is where objects come from: "dir:PATH", a directory of YAML files. Required.
	Store string
	// StateDir is the directory for keys, tokens, records of certificates and of drains. It is made with mode 0700. Required.
	StateDir string
	// TrustDomain is the suffix of all trust domains. Default mesh.DefaultTrustDomain.
	TrustDomain string
	// BindAddress is the IP address of all listeners. Default DefaultBindAddress.
	BindAddress string
	// AgentsPort is for agents and ADS, AdminPort for sondectl, HealthPort for health and metrics. 0 means a free port, which
	// is then in the file addresses.json in StateDir.
	AgentsPort, AdminPort, HealthPort uint16
	// Version of the program, to tell agents.
	Version string
	// Logger, default none.
	Logger *slog.Logger
}

// withDefaults sets the default of each option that is not set.
func (o Options) withDefaults() Options {
	o.TrustDomain = cmp.Or(o.TrustDomain, mesh.DefaultTrustDomain)
	o.BindAddress = cmp.Or(o.BindAddress, DefaultBindAddress)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
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
	if path, ok := strings.CutPrefix(o.Store, storeDirPrefix); !ok || path == "" {
		refuse("Store", o.Store, "must be dir:PATH")
	}
	if o.StateDir == "" {
		refuse("StateDir", o.StateDir, "must be a directory")
	}
	if d := o.TrustDomain; d != "" && (len(d) > 128 || !trustDomainName.MatchString(d)) {
		refuse("TrustDomain", d, "must be a DNS name in lower case of at most 128 characters")
	}
	if a := o.BindAddress; a != "" && net.ParseIP(a) == nil {
		refuse("BindAddress", a, "must be an IP address")
	}
	return errors.Join(errs...)
}
