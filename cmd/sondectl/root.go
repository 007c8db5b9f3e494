package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const rootHelp = `sondectl shows the state of the control plane of a mesh, and works on files without it.

Look at a running mesh:
  sondectl get proxies                              who is connected, what Envoy refused and why
  sondectl get services                             which endpoints are ready, which have a sidecar
  sondectl inspect dataplane web-1 --type clusters  the configuration that this proxy should have

Work on files, without any server:
  sondectl validate -f mesh/                        every mistake, with file, line and field
  sondectl generate envoy web-1 -f mesh/            the Envoy resources for these files
  sondectl generate envoy web-1 -f mesh/ --static   one configuration for envoy --mode validate

Bring pods into the mesh, without any server:
  sondectl inject -f web.yaml                       the same objects, with a sidecar in each pod
  sondectl probes explain -f web.yaml               what becomes of each probe and hook, and why

Change something:
  sondectl generate dataplane-token --name web-1 --workload web --valid-for 24h
  sondectl rotate ca --wait

Commands that call the control plane need two files of its state directory: serving-ca.crt, with which sondectl verifies the
control plane, and admin-token, which authorises you:
  sondectl get meshes --ca-cert-file state/serving-ca.crt --token-file state/admin-token

Every get also writes the problems of the control plane's store to stderr. A command that fails writes nothing to stdout.

Exit codes:
  0  done
  1  failed: the reason is on stderr
  2  wrong usage
  3  the control plane cannot be reached, or is not ready
  4  rotate ca: the rotation is in progress`

// cli is one run of the program.
type cli struct {
	address, caFile, tokenFile string
	// out is the output, which is held back until the command has succeeded.
	out bytes.Buffer
	// working is set when a command's action begins.
	working bool
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "sondectl",
		Short:         "Look at a mesh, check its files, issue its tokens",
		Long:          rootHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&c.address, "address", fmt.Sprintf("127.0.0.1:%d", mesh.PortAdmin), "`HOST:PORT` of the control plane's admin API")
	flags.StringVar(&c.caFile, "ca-cert-file", "", "`FILE` with the control plane's CA certificate (serving-ca.crt)")
	flags.StringVar(&c.tokenFile, "token-file", "", "`FILE` with the admin token (admin-token)")
	root.AddCommand(c.get(), c.inspect(), c.validate(), c.generate(), c.inject(), c.probes(), c.rotate())
	group(root)
	// A group is only runnable in order to refuse unknown commands: do not show that as a usage.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))
	return root
}

// action wraps the action of a command: errors from then on are not usage errors.
func (c *cli) action(work func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c.working = true
		return work(cmd, args)
	}
}

// group makes a command that only has subcommands refuse unknown ones. By default cobra prints the help and succeeds.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.SuggestionsMinimumDistance = 2
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		var names []string
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				names = append(names, sub.Name())
			}
		}
		if len(args) == 0 && cmd.HasParent() {
			return usagef("a command is missing: %s", strings.Join(names, ", "))
		}
		if len(args) == 0 {
			return nil
		}
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			names = near
		}
		return usagef("command %q not found: did you mean %s?", args[0], strings.Join(names, ", "))
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}

// oneLine replaces control characters by spaces, so that a foreign text is one line and safe for a terminal.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }), " ")
}
