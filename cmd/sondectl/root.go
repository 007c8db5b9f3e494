package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sonde-mesh/sonde/cmd/sondectl/check"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/cmd/sondectl/migrate"
	"github.com/sonde-mesh/sonde/cmd/sondectl/watchdog"
	"github.com/sonde-mesh/sonde/internal/buildinfo"
	"github.com/sonde-mesh/sonde/internal/settings"
)

const rootHelp = `sondectl shows the state of the control plane of a mesh, and works on files without it.

Look at a running mesh:
  sondectl status                                   is anything wrong, what, since when, and what to do next
  sondectl get proxies                              who is connected, what Envoy refused and why
  sondectl get services                             which endpoints are ready, which have a sidecar
  sondectl why pod/web-0 -n shop                    why a pod is not ready, not in the mesh or without traffic
  sondectl why backend                              what speaks against each endpoint of a service
  sondectl inspect dataplane web-1 --type clusters  what the Envoy of this proxy has
  sondectl restarts                                 which containers fail and may not restart, or restart now
  sondectl check strict                             what mode STRICT would refuse, and from whom
  sondectl health                                   why the control plane is not alive or not ready

Before you install Sonde, and when something is wrong, with your rights in the cluster:
  sondectl check                                    may it be installed, and does anything speak against it
  sondectl check --installed                        does all of it work, and what to do if not

Work on files, without any server:
  sondectl validate -f mesh/                        every mistake, with file, line and field
  sondectl generate envoy web-1 -f mesh/            the Envoy resources for these files
  sondectl generate envoy web-1 -f mesh/ --static   one configuration for envoy --mode validate

Bring pods into the mesh, without any server:
  sondectl inject -f web.yaml                       the same objects, with a sidecar in each pod
  sondectl probes explain -f web.yaml               what becomes of each probe and hook, and why

Move pods from Kuma, Istio or another mode of probes, without any server:
  sondectl migrate plan -f cluster.json             what changes for each probe, what clashes, what is wrong today
  sondectl migrate status -f cluster.json           which pods are in which mode, which are still to roll

Change something:
  sondectl generate dataplane-token --name web-1 --workload web --valid-for 24h
  sondectl rotate ca --wait
  sondectl restarts release deployment/web -n shop  restart again what restarts have not helped
  sondectl freeze --zone eu-west-1a                 keep its endpoints while its nodes are not seen, until sondectl thaw

Keep new traffic from pods, with your rights in the cluster:
  sondectl drain node/worker-3                      until sondectl undrain node/worker-3

Look at clusters whose nodes sonde-watchdog watches, with your rights in the cluster:
  sondectl watchdog status -A                       which are seen, and what is scaled down

Commands that call the control plane find it in the cluster of your kubeconfig, and need your rights there alone (docs/kubernetes.md):
  sondectl get meshes --kube-context prod

Outside of Kubernetes they need its address and two files of its state directory: serving-ca.crt, with which sondectl verifies the control plane, and
admin-token, which authorises you:
  sondectl get meshes --ca-cert-file state/serving-ca.crt --token-file state/admin-token

Each of these flags may also be a variable: SONDECTL_ADDRESS, SONDECTL_CA_CERT_FILE, SONDECTL_TOKEN_FILE; an empty one counts as none.

Every get, and why, also writes the problems of the control plane's store to stderr. A command that fails writes nothing to stdout, but validate -o json does. On a
terminal control characters in names and texts are escaped.

Exit codes:
  0  done
  1  failed: the reason is on stderr
  2  wrong usage: a command, argument, flag or variable
  3  the control plane cannot be reached, or is not ready
  4  rotate ca: the rotation is in progress
  5  migrate plan: there are findings or clashes; migrate status: pods are still to roll
  6  status: something is wrong; health: a check of the control plane fails; check: a line is [fail]
A command that a signal ends says nothing: a shell has 130 for SIGINT, and 143 for SIGTERM.`

// envPrefix is what variables begin with.
const envPrefix = "SONDECTL_"

// cli is one run of the program.
type cli struct {
	// dial connects to the control plane and to API servers. Default: net.Dialer.DialContext, and the dialer of client-go.
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	address, caFile, tokenFile string
	// cluster says in which cluster the control plane is, if it is not at an address, and session reaches it there once a command has called it.
	cluster cluster.Options
	session *cluster.Session
	// flags are those of all commands.
	flags *pflag.FlagSet
	// out is the output, which is held back until the command has succeeded.
	out bytes.Buffer
	// stdout gets at once what a command writes that does not end by itself, and stderr notes.
	stdout, stderr io.Writer
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "sondectl",
		Short:         "Look at a mesh, check its files, issue its tokens",
		Long:          rootHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	c.addConnectionFlags(root.PersistentFlags())
	root.AddCommand(c.get(), c.inspect(), c.validate(), c.generate(), c.inject(), c.probes(), migrate.Command(&c.out), watchdog.Command(&c.out, &c.cluster), check.Command(&c.out, check.Options{Cluster: c.clusterAlone, CallInCluster: c.callInCluster, Call: c.call, Meshes: c.completeMeshes}), c.drain(), c.undrain(), c.rotate(), c.health(), c.status(), c.why(), c.restarts(), c.freeze(), c.thaw())
	buildinfo.Add(root)
	settings.Install(root, settings.Options{
		Prefix: envPrefix, Replaced: ofKuma(), Variables: func(*cobra.Command) *pflag.FlagSet { return root.PersistentFlags() },
		Unknown: func(cmd *cobra.Command, variables []string) {
			cmd.PrintErrf("sondectl: warning: unknown variables of the environment are ignored: %s\n", strings.Join(variables, ", "))
		},
	})
	return root
}
