package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/reach"
	"github.com/sonde-mesh/sonde/internal/settings"
)

// Flags of all commands for the control plane's address.
const (
	flagAddress   = "address"
	flagCACert    = "ca-cert-file"
	flagTokenFile = "token-file"
)

func (c *cli) addConnectionFlags(flags *pflag.FlagSet) {
	c.flags = flags
	c.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(mesh.PortAdmin))
	flags.Var(&reach.AddressFlag{Service: reach.Admin, To: &c.address}, flagAddress,
		"`HOST:PORT` of the control plane's admin API")
	flags.StringVar(&c.caFile, flagCACert, "", "`FILE` with the control plane's CA certificate (serving-ca.crt)")
	flags.StringVar(&c.tokenFile, flagTokenFile, "", "`FILE` with the admin token (admin-token)")
	c.cluster.Add(flags)
}

// given reports whether the command line or an environment variable sets a flag.
func (c *cli) given(flag string) bool { return c.flags.Lookup(flag).Changed }

// refuseContexts returns an error if sondectl 0.1 would have used a context, which may have named another control
// plane.
func (c *cli) refuseContexts() error {
	if c.clusterGiven() != "" || c.given(flagAddress) && c.given(flagCACert) && c.given(flagTokenFile) {
		return nil
	}
	var found []string
	if directory, err := os.UserConfigDir(); err == nil {
		file := filepath.Join(directory, "sonde", "sondectl.yaml")
		if _, err := os.Stat(file); err == nil {
			found = append(found, "remove "+file)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look for contexts of sondectl 0.1: %w", err)
		}
	}
	for _, variable := range []string{envPrefix + "CONTEXT", envPrefix + "CONFIG"} {
		if os.Getenv(variable) != "" {
			found = append(found, "unset "+variable)
		}
	}
	if len(found) == 0 {
		return nil
	}
	return settings.Usagef("contexts are no longer supported: %s to use the kubeconfig, or %s", strings.Join(found, ", "), connect)
}
