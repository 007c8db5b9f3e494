package main

import (
	"context"
	"io"
	"net"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/cmd/sondectl/check"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/cmd/sondectl/migrate"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/cmd/sondectl/watchdog"
	"github.com/sonde-mesh/sonde/internal/buildinfo"
	"github.com/sonde-mesh/sonde/internal/settings"
)

const rootHelp = `sondectl shows the state of a mesh by calling its control plane, and works on files without a server.

Look at a running mesh:
  sondectl status is anything wrong, what, since when, and what to do next
  sondectl dashboard the same and more in a browser, live
  sondectl get proxies who is connected, what Envoy refused and why
  sondectl get services which endpoints are ready, which have a sidecar
  sondectl why pod/web-0 -n shop                    why a pod is not ready, not in the mesh or without traffic
  sondectl why backend                              why each endpoint of a service gets traffic or not
  sondectl inspect dataplane web-1 --type clusters  the actual configuration of this proxy's Envoy
  sondectl restarts                                 containers that fail and wait for a restart, or are restarting
  sondectl check strict                             traffic that mode STRICT would reject, and its sources
  sondectl health                                   health checks of the control plane

Check a cluster before an installation and when something is wrong, with your rights in the cluster:
  sondectl check                                    can Sonde be installed in this cluster
  sondectl check --installed                        does the installation work, and what to do if not

Work on files, without any server:
  sondectl validate -f mesh/                        every error, with file, line and field
  sondectl generate envoy web-1 -f mesh/            the Envoy resources for these files
  sondectl generate envoy web-1 -f mesh/ --static   one configuration for envoy --mode validate

Add pods to the mesh, without any server:
  sondectl inject -f web.yaml                       the same objects, with a sidecar in each pod
  sondectl probes explain -f web.yaml               how Sonde rewrites each probe and hook

Move pods from Kuma, Istio or another mode of probes, without any server:
  sondectl migrate plan -f cluster.json             changes of each probe, clashes, existing problems
  sondectl migrate status -f cluster.json           modes of pods, and pods that are still to roll

Change something:
  sondectl generate dataplane-token --name web-1 --workload web --valid-for 24h
  sondectl rotate ca --wait
  sondectl restarts release deployment/web -n shop  allow restarts again that have not helped
  sondectl freeze --zone eu-west-1a                 keep endpoints while its nodes are unreachable, until sondectl thaw

Keep new traffic from pods, with your rights in the cluster:
  sondectl drain node/worker-3                      until sondectl undrain node/worker-3

Show clusters whose nodes sonde-watchdog watches, with your rights in the cluster:
  sondectl watchdog status -A                       state of their nodes, and scaled-down controllers

Commands that call the control plane find it in the cluster of your kubeconfig, and only need your rights there
(docs/kubernetes.md):
  sondectl get meshes --kube-context prod

Outside of Kubernetes, they need its address and two files of its state directory: serving-ca.crt, to verify the control
plane, and admin-token, to authorise you:
  sondectl get meshes --ca-cert-file state/serving-ca.crt --token-file state/admin-token

These environment variables set flags: SONDECTL_ADDRESS, SONDECTL_CA_CERT_FILE, SONDECTL_TOKEN_FILE. Empty variables are
ignored.

get and why also write the problems of the control plane's store to stderr. A failing command writes nothing to stdout,
except validate -o json. On a terminal, sondectl escapes control characters in names and texts, and tables have colours:
red is wrong, yellow needs attention (--color, NO_COLOR).

Exit codes:
  0  done
  1  failed: the reason is on stderr
  2  wrong usage: a command, argument, flag or variable
  3  the control plane cannot be reached, or is not ready
  4  rotate ca: the rotation is in progress
  5  migrate plan: findings or clashes; migrate status: pods are still to roll
  6  status: something is wrong; health: a check of the control plane fails; check: a line is [fail]
If a signal kills a command, it prints nothing; a shell reports 130 for SIGINT, and 143 for SIGTERM.`

// envPrefix begins the names of the environment variables that set flags.
const envPrefix = "SONDECTL_"

// cli is one execution of the program.
type cli struct {
	// dial connects to the control plane and to API servers. Default: net.Dialer.DialContext, and the dialer of client-go.
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	address, caFile, tokenFile string
	// cluster locates the control plane's cluster, unless an address is set. session is the connection of the last call in
	// that cluster.
	cluster cluster.Options
	session *cluster.Session
	color   settings.Choice[color]
	// flags are persistent flags of all commands.
	flags *pflag.FlagSet
	// out is the output, which is written after the command has succeeded.
	out printer.Output
	// stdout gets the output of commands that run until a signal, and stderr their notes.
	stdout, stderr io.Writer
	// colours is whether stdout has them if --color is auto, terminal whether it is a terminal.
	colours, terminal bool
}

// color is the value of --color.
type color string

const (
	colorAuto   color = "auto"
	colorAlways color = "always"
	colorNever  color = "never"
)

// addColor adds the flag --color.
func (c *cli) addColor(root *cobra.Command) {
	c.color = settings.Choice[color]{Value: colorAuto, Among: []color{colorAuto, colorAlways, colorNever}}
	root.PersistentFlags().Var(&c.color, "color", "colours in tables and texts; auto means on a terminal, unless NO_COLOR is set or TERM is dumb")
	settings.Must(root.RegisterFlagCompletionFunc("color", cobra.FixedCompletions(c.color.Words(), cobra.ShellCompDirectiveNoFileComp)))
}

// hasColours reports whether the output has colours.
func (c *cli) hasColours() bool {
	return c.color.Value == colorAlways || c.color.Value == colorAuto && c.colours
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "sondectl",
		Short:         "Show the state of a mesh, check its files, issue its tokens",
		Long:          rootHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	c.addConnectionFlags(root.PersistentFlags())
	c.addColor(root)
	checks := check.Options{
		Cluster: c.clusterAlone, CallInCluster: c.callInCluster, Call: c.call, Meshes: c.completeMeshes,
	}
	root.AddCommand(
		c.get(), c.inspect(), c.validate(), c.generate(), c.inject(), c.probes(), migrate.Command(&c.out),
		watchdog.Command(&c.out, &c.cluster), check.Command(&c.out, checks), c.drain(), c.undrain(), c.rotate(), c.health(),
		c.status(), c.dashboard(), c.why(), c.restarts(), c.freeze(), c.thaw(),
	)
	buildinfo.Add(root)
	settings.Install(root, settings.Options{
		Prefix: envPrefix, Replaced: ofKuma(),
		Variables: func(*cobra.Command) *pflag.FlagSet { return root.PersistentFlags() },
		Unknown: func(cmd *cobra.Command, variables []string) {
			cmd.PrintErrf("sondectl: warning: ignoring unknown environment variables: %s\n", strings.Join(variables, ", "))
		},
	})
	return root
}
