package main

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/reach"
)

// Flags of all commands.
const (
	flagAddress   = "address"
	flagCACert    = "ca-cert-file"
	flagTokenFile = "token-file"
	flagContext   = "context"
	flagConfig    = "config"
)

// setting is a value, and where it stands, for errors.
type setting struct{ value, source string }

// connection is how the control plane is reached.
type connection struct{ address, caFile, tokenFile setting }

func (c *cli) addConnectionFlags(flags *pflag.FlagSet) {
	c.flags = flags
	c.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(mesh.PortAdmin))
	flags.Var(&reach.AddressFlag{Service: reach.Admin, To: &c.address}, flagAddress, "`HOST:PORT` of the control plane's admin API")
	flags.StringVar(&c.caFile, flagCACert, "", "`FILE` with the control plane's CA certificate (serving-ca.crt)")
	flags.StringVar(&c.tokenFile, flagTokenFile, "", "`FILE` with the admin token (admin-token)")
	flags.StringVar(&c.contextName, flagContext, "", "`NAME` of a context, see sondectl config; default the current one")
	flags.StringVar(&c.configFile, flagConfig, "", "`FILE` with contexts; default sonde/sondectl.yaml in the user's directory for configuration")
	c.cluster.Add(flags)
}

// given says whether the command line or a variable sets a flag.
func (c *cli) given(flag string) bool { return c.flags.Lookup(flag).Changed }

// contextPath returns the file with contexts. The error says that there is no default.
func (c *cli) contextPath() (string, error) {
	if c.configFile != "" {
		return c.configFile, nil
	}
	directory, err := os.UserConfigDir()
	if err != nil {
		return "", &mesh.FieldError{Field: "--" + flagConfig, Err: fmt.Errorf("is required: %w", err)}
	}
	return filepath.Join(directory, "sonde", "sondectl.yaml"), nil
}

// contexts returns the file with contexts, and its path. One that no flag or variable names need not exist.
func (c *cli) contexts() (*contextFile, string, error) {
	if err := c.checkNamed(); err != nil {
		return nil, "", err
	}
	return c.contextsToChange()
}

// checkNamed returns an error if a flag or variable names a file with contexts, and there is none.
func (c *cli) checkNamed() error {
	if c.configFile == "" {
		return nil
	}
	if _, err := os.Stat(c.configFile); err != nil {
		return &mesh.FieldError{Field: "--" + flagConfig, Err: fmt.Errorf("%w: sondectl config set-context makes it", err)}
	}
	return nil
}

// contextsToChange is contexts for a command that makes the file where it does not exist.
func (c *cli) contextsToChange() (*contextFile, string, error) {
	path, err := c.contextPath()
	if err != nil {
		return nil, "", err
	}
	f, err := readContextFile(path)
	return f, path, err
}

// connection returns what flags and variables say, and where they say nothing what the context does, if there is one.
func (c *cli) connection() (connection, error) {
	item, source, err := c.context()
	if err != nil {
		return connection{}, err
	}
	choose := func(flag, value, key, ofContext string) setting {
		if c.given(flag) || ofContext == "" {
			return setting{value, "--" + flag}
		}
		return setting{ofContext, source + key}
	}
	return connection{
		address:   choose(flagAddress, c.address, "address", item.Address),
		caFile:    choose(flagCACert, c.caFile, "caCertFile", item.CACertFile),
		tokenFile: choose(flagTokenFile, c.tokenFile, "tokenFile", item.TokenFile),
	}, nil
}

// context returns the context that is used, and how errors name it. It is empty if there is none, and if flags and variables say everything.
func (c *cli) context() (item contextItem, source string, err error) {
	if err := c.checkNamed(); err != nil {
		return contextItem{}, "", err
	}
	all := c.given(flagAddress) && c.given(flagCACert) && c.given(flagTokenFile)
	if _, none := c.contextPath(); c.contextName == "" && (all || none != nil) { // a user without a directory has no contexts
		return contextItem{}, "", nil //nolint:nilerr // so that there is no file is no error
	}
	f, path, err := c.contexts()
	if err != nil {
		return contextItem{}, "", err
	}
	name := cmp.Or(c.contextName, f.CurrentContext)
	switch found := f.find(name); {
	case found != nil:
		return *found, fmt.Sprintf("%s: context %q: ", path, name), nil
	case name != "":
		return contextItem{}, "", f.notFound("--"+flagContext, path, name)
	}
	return contextItem{}, "", nil
}
