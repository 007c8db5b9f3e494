// Package check implements sondectl check: can Sonde be installed in a cluster, does an installation work, and what
// would mode STRICT reject?
package check

import (
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
	// CallInCluster calls the control plane in that cluster, with a deadline. Its errors are for users.
	CallInCluster func(ctx context.Context, work func(context.Context, adminv1.AdminServiceClient) error) error
	// Call is like CallInCluster, but flags may name a control plane outside of a cluster.
	Call func(ctx context.Context, work func(context.Context, adminv1.AdminServiceClient) error) error
	// Meshes completes names of meshes.
	Meshes cobra.CompletionFunc
}

const help = `Check whether Sonde can be installed in the cluster of your kubeconfig, or with --installed whether the existing
installation works. Without --nodes, the command changes nothing.

Before an installation, the command calls only the API server, with your rights. It checks the versions of the API
server and nodes, definitions of another version, your rights to create the chart's objects, other meshes and their
labels, pods that declare ports of the sidecar, workloads that kuma.io/gateway will open, and, if helm waits or has
failed, the reason. With --installed it also checks the rights of the control plane, whether the API server reaches the
webhook (by a dry run of a pod), the expiry of certificates, replicas and their connections to each other, health
checks, pods that lack a sidecar, versions of agents, proxies that do not trust the serving CA, and ports in use.

With --nodes, a Job on each node that is Ready and not cordoned runs the commands of the sidecar's init container in the
network of its own pod, so that the node itself does not change. This shows which kernels lack a feature, and which
nodes cannot pull the image. The Job also has a liveness probe that is errored, with a threshold of one failure: if the
kubelet kills its container, guarded liveness cannot hold failures back on that node. The command tests at most 200
nodes, ten at a time, for at most 10 minutes. It deletes the Jobs, even after a signal. You need the rights to create
and delete jobs, and to create and list pods, in the namespace of --nodes-namespace.

Each line is [ok], [warn] or [fail], with what to do. A check for which you lack rights is [warn].
docs/reference/check.md explains each check.

Exit code 0: no line is [fail]; 6: at least one line is [fail].`

// Command returns sondectl check, which writes its output to out.
func Command(out *printer.Output, o Options) *cobra.Command {
	var asked request
	cmd := &cobra.Command{
		Use:     "check",
		Short:   "Check whether Sonde can be installed, or works, and what to do",
		Long:    help,
		Example: "  sondectl check\n  sondectl check --installed\n  sondectl check --installed --kube-context prod -o json\n  sondectl check --installed --nodes --nodes-namespace shop",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&asked.installed, "installed", false, "check an existing installation")
	cmd.Flags().StringVar(&asked.podNamespace, flagPodNamespace, metav1.NamespaceDefault,
		"`NAMESPACE` of the pod for the dry run, with --installed")
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

// request holds the values of the flags.
type request struct {
	installed    bool
	podNamespace string
	nodes        nodesRequest
}

// before and installed list the checks before and after an installation, in the order of the output.
var (
	before = []check{
		apiServer, kubelets, kubeletGates, kernels, definitions, controlPlanes, installation, yourRights, otherMeshes,
		declaredPorts, gateways,
	}
	installed = []check{
		apiServer, kubelets, kubeletGates, kernels, cniPlugin, definitions, controlPlanes, installation, planeRights,
		otherMeshes, controlPlane, replicas, endpoints, dryRunPod, certificates, health, notInjected, agents,
		guardedLiveness, servingCA, declaredPorts, takenPorts, gateways,
	}
)

// check runs all checks and returns their lines. It returns an error if none can run.
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
		checks = append(slices.Clip(checks), triedNodes, triedLiveness)
	}
	var lines []Line
	for _, check := range checks {
		lines = append(lines, check.lines(f)...)
	}
	return lines, nil
}
