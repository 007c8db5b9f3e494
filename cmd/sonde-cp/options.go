package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Options of the control plane. Each is a flag, and a key of the --config file.
type Options struct {
	// Store is where objects come from: "dir:PATH".
	Store string
	// StateDir is the folder for keys, tokens, records of certificates and of drains.
	StateDir string
	// TrustDomain is the suffix of all trust domains.
	TrustDomain string
	// BindAddress is the IP address of all listeners.
	BindAddress string
	// AgentsPort is for agents and ADS, AdminPort for sondectl, HealthPort for health and metrics. 0 means a free port,
	// which is then in the file addresses.json in StateDir.
	AgentsPort, AdminPort, HealthPort uint16
	// LogLevel is debug, info, warn or error.
	LogLevel string

	config string
}

// storeFolder returns the PATH of dir:PATH.
func (o *Options) storeFolder() string { return strings.TrimPrefix(o.Store, storeDirPrefix) }

// storeDirPrefix is the prefix of a folder in Options.Store.
const storeDirPrefix = "dir:"

func (o *Options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.config, "config", "", "YAML `FILE` with these flags as keys (stateDir for state-dir); a flag takes precedence over its key")
	flags.StringVar(&o.Store, "store", "", "where objects come from: dir:`PATH`, a folder of YAML files")
	flags.StringVar(&o.StateDir, "state-dir", "/var/lib/sonde", "`FOLDER` for keys and other state, created with mode 0700")
	flags.StringVar(&o.TrustDomain, "trust-domain", mesh.DefaultTrustDomain, "`SUFFIX` of the trust domains of all meshes")
	flags.StringVar(&o.BindAddress, "bind-address", "0.0.0.0", "`IP` address of all listeners")
	flags.Uint16Var(&o.AgentsPort, "agents-port", mesh.PortAgents, "`PORT` for agents and ADS, mutual TLS; 0 means a free one")
	flags.Uint16Var(&o.AdminPort, "admin-port", mesh.PortAdmin, "`PORT` for sondectl, TLS and token; 0 means a free one")
	flags.Uint16Var(&o.HealthPort, "health-port", mesh.PortHealth, "`PORT` for /livez, /readyz and /metrics, plain HTTP; 0 means a free one")
	flags.StringVar(&o.LogLevel, "log-level", "info", "`LEVEL`: debug, info, warn or error")
}

// trustDomainName matches a DNS name in lower case, as SPIFFE-ID §2.1 allows and certificates need.
var trustDomainName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// Validate returns all violations, joined. Each names its flag.
func (o *Options) Validate() error {
	var errs []error
	refuse := func(flag, value, allowed string) {
		errs = append(errs, fmt.Errorf("--%s: %q: %s", flag, value, allowed))
	}
	if path, ok := strings.CutPrefix(o.Store, storeDirPrefix); !ok || path == "" {
		refuse("store", o.Store, "must be dir:PATH")
	}
	if o.StateDir == "" {
		refuse("state-dir", o.StateDir, "must be a folder")
	}
	if len(o.TrustDomain) > 128 || !trustDomainName.MatchString(o.TrustDomain) {
		refuse("trust-domain", o.TrustDomain, "must be a DNS name in lower case of at most 128 characters")
	}
	if net.ParseIP(o.BindAddress) == nil {
		refuse("bind-address", o.BindAddress, "must be an IP address")
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.LogLevel)); err != nil {
		refuse("log-level", o.LogLevel, "must be debug, info, warn or error")
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
			allowed[camelCase(f.Name)] = f
		}
	})
	var errs []error
	for key, value := range values {
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
