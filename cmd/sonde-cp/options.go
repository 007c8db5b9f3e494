package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
)

// options are the flags. Each is also a key of the --config file.
type options struct {
	controlplane.Options
	// logLevel is debug, info, warn or error.
	logLevel string
	config   string
}

// flagOf has the flag of each field of controlplane.Options that an error may name.
var flagOf = map[string]string{
	"Store": "--store", "StateDir": "--state-dir", "TrustDomain": "--trust-domain", "BindAddress": "--bind-address",
	"AgentsPort": "--agents-port", "AdminPort": "--admin-port", "HealthPort": "--health-port",
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.config, "config", "", "YAML `FILE` with these flags as keys (stateDir for state-dir); a flag takes precedence over its key")
	flags.StringVar(&o.Store, "store", "", "where objects come from: dir:`PATH`, a directory of YAML files")
	flags.StringVar(&o.StateDir, "state-dir", "/var/lib/sonde", "`DIRECTORY` for keys and other state, created with mode 0700")
	flags.StringVar(&o.TrustDomain, "trust-domain", mesh.DefaultTrustDomain, "`SUFFIX` of the trust domains of all meshes")
	flags.StringVar(&o.BindAddress, "bind-address", controlplane.DefaultBindAddress, "`IP` address of all listeners")
	flags.Uint16Var(&o.AgentsPort, "agents-port", mesh.PortAgents, "`PORT` for agents and ADS, mTLS; 0 means a free one")
	flags.Uint16Var(&o.AdminPort, "admin-port", mesh.PortAdmin, "`PORT` for sondectl, TLS and token; 0 means a free one")
	flags.Uint16Var(&o.HealthPort, "health-port", mesh.PortHealth, "`PORT` for /livez, /readyz and /metrics, plain HTTP; 0 means a free one")
	flags.StringVar(&o.logLevel, "log-level", "info", "`LEVEL`: debug, info, warn or error")
}

// validate returns all violations, joined. Each names its flag.
func (o *options) validate(flags *pflag.FlagSet) error {
	errs := []error{mesh.RenameFields(o.Validate(), flagOf)}
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		errs = append(errs, fmt.Errorf("--log-level: %q: must be debug, info, warn or error", o.logLevel))
	}
	// Whoever passes a variable that is not set does not ask for the default.
	for _, flag := range []string{"trust-domain", "bind-address"} {
		if flags.Lookup(flag).Value.String() == "" {
			errs = append(errs, fmt.Errorf("--%s: must not be empty", flag))
		}
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
