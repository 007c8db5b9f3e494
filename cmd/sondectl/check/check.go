// Package check is sondectl check: lines that say whether Sonde can be installed in a cluster, or whether the one that is there works, and what mode STRICT
// would refuse, and what to do first.
package check

import (
	"bytes"
	"context"
	"slices"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// Options connect the commands with the rest of sondectl.
type Options struct {
	// Cluster returns the cluster of the kubeconfig. Its errors are for users.
	Cluster func() (*cluster.Cluster, error)
	// CallInCluster makes a call to the control plane in that cluster, with a deadline. Its errors are for users.
	CallInCluster func(ctx context.Context, work func(context.Context, adminv1.AdminServiceClient) error) error
	// Call makes a call to the control plane that flags name, which may be outside of a cluster. Otherwise it is as CallInCluster.
	Call func(ctx context.Context, work func(context.Context, adminv1.AdminServiceClient) error) error
	// Meshes completes names of meshes.
	Meshes cobra.CompletionFunc
}

const help = `Say whether Sonde can be installed in the cluster of your kubeconfig, or with --installed whether the one that is there works. Nothing is changed,
unless you ask with --nodes.

Before an installation only the API server is asked, with your rights: its version and those of the nodes, definitions of another version, your rights for
what the chart makes, other meshes and who owns which label, pods that declare ports of the sidecar, and while helm waits, or has failed, what for. With --installed also: the rights of the control
plane, whether the API server reaches the webhook (it is asked for a pod that is not made), certificates and their ends, replicas and whether they hear each
other, health checks, pods that should have a sidecar and have none, versions of agents, who may not trust the serving CA, and ports that are taken.

With --nodes a Job on each node that is Ready and not cordoned runs what the init container of a sidecar runs, in the network of its own pod, so that nothing of the
node changes: it says what the kernels lack, and where the image cannot be pulled. At most 200 nodes are tried, ten at a time, for at most 10 minutes. The Jobs
are deleted, also after a signal. It takes the rights to create and delete jobs and to create and list pods in the namespace of --nodes-namespace.

Each line is [ok], [warn] or [fail], with what to do. A line that your rights do not allow to check is [warn]. docs/kubernetes.md explains each.

Exit code 0: no line is [fail]; 6: at least one is.`

// Command returns sondectl check, which writes its output to out.
func Command(out *bytes.Buffer, o Options) *cobra.Command {
	var asked request
	cmd := &cobra.Command{
		Use:     "check",
		Short:   "Say whether Sonde can be installed, or works, and what to do first",
		Long:    help,
		Example: "  sondectl check\n  sondectl check --installed\n  sondectl check --installed --kube-context prod -o json\n  sondectl check --installed --nodes --nodes-namespace shop",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&asked.installed, "installed", false, "check the installation that is there")
	cmd.Flags().StringVar(&asked.podNamespace, flagPodNamespace, metav1.NamespaceDefault, "`NAMESPACE` of the pod that the webhook is asked for and that is not made, with --installed")
	asked.nodes.add(cmd)
	output := printer.AddFormat(cmd, printer.Text, printer.YAML, printer.JSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !asked.installed && cmd.Flags().Changed(flagPodNamespace) {
			return &mesh.FieldError{Field: "--" + flagPodNamespace, Value: asked.podNamespace, Allowed: "must not be given without --installed"}
		}
		if err := asked.nodes.validate(cmd, asked.installed); err != nil {
			return err
		}
		lines, err := o.check(cmd.Context(), asked)
		if err != nil {
			return err
		}
		return write(out, lines, output.Value)
	}
	cmd.AddCommand(strictCommand(out, o))
	return cmd
}

const flagPodNamespace = "pod-namespace"

// request is what flags say.
type request struct {
	installed    bool
	podNamespace string
	nodes        nodesRequest
}

// before and installed are the checks, in the order of their lines.
var (
	before = []check{
		apiServer, kubelets, kernels, definitions, controlPlanes, installation, yourRights, otherMeshes, declaredPorts,
	}
	installed = []check{
		apiServer, kubelets, kernels, definitions, controlPlanes, installation, planeRights, otherMeshes, controlPlane,
		replicas, endpoints, dryRunPod, certificates, health, notInjected, agents, servingCA, declaredPorts, takenPorts,
	}
)

// check returns all lines. The error says why nothing can be checked.
func (o *Options) check(ctx context.Context, asked request) ([]Line, error) {
	f, err := o.read(ctx, asked)
	if err != nil {
		return nil, err
	}
	checks := before
	if asked.installed {
		checks = installed
	}
	if asked.nodes.asked {
		checks = append(slices.Clip(checks), triedNodes)
	}
	var lines []Line
	for _, check := range checks {
		lines = append(lines, check.lines(f)...)
	}
	return lines, nil
}
