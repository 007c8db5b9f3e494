package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/tools/testbed/binaries"
	"github.com/sonde-mesh/sonde/tools/testbed/cluster"
)

// at returns the cluster for the flag --state.
type at func(cmd *cobra.Command) (*cluster.Cluster, error)

func newUpCommand(at at) *cobra.Command {
	var options cluster.Options
	var family, kubernetes string
	var nodeKubernetes []string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "start a cluster, as root, and wait until it is ready",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := at(cmd)
			if err != nil {
				return err
			}
			getter, err := newGetter(cmd)
			if err != nil {
				return err
			}
			options.IPFamily = cluster.IPFamily(family)
			if options.Kubernetes, err = binaries.ParseVersion(kubernetes); err != nil {
				return err
			}
			for _, text := range nodeKubernetes {
				v, err := binaries.ParseVersion(text)
				if err != nil {
					return err
				}
				options.NodeKubernetes = append(options.NodeKubernetes, v)
			}
			if err := c.Up(cmd.Context(), options, getter); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "the cluster is ready:\n  %s get nodes\n  %s 2 COMMAND…   (on the network of node 2)\n", c.Kubectl(), c.Node())
			return err
		},
	}
	cmd.Flags().IntVar(&options.Nodes, "nodes", 2, "number of nodes, 1 to 20; the first has the control plane too")
	cmd.Flags().StringVar(&family, "ip-family", string(cluster.Dual), "addresses of nodes, pods and services: dual, ipv4 or ipv6")
	cmd.Flags().StringSliceVar(&options.Zones, "zones", nil, "zones, assigned to nodes in turn, such as a,b: labels "+cluster.ZoneLabel)
	cmd.Flags().DurationVar(&options.NodeMonitorGracePeriod, "node-monitor-grace-period",
		cluster.DefaultNodeMonitorGracePeriod,
		"time without a report after which the controller-manager sets a node to Unknown, 10s to 1h; Kubernetes' own default is 50s")
	cmd.Flags().StringVar(&kubernetes, "kubernetes", string(binaries.DefaultVersion), kubernetesUsage)
	cmd.Flags().StringSliceVar(&nodeKubernetes, "node-kubernetes", nil,
		"versions, assigned to nodes in turn, such as 1.37.2,1.36.3; none newer than --kubernetes (default: its version)")
	cmd.Flags().StringSliceVar(&options.FeatureGates, "feature-gates", nil, "feature gates to set, such as H2CContainerProbe=true; the API server must have them")
	return cmd
}

func newCheckCommand(at at) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "print what this machine lacks for a cluster; exits with an error if it lacks anything",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := at(cmd)
			if err != nil {
				return err
			}
			return c.Requirements(cmd.Context())
		},
	}
}

func newDownCommand(at at) *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "stop the cluster, or its remains, and remove all of it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := at(cmd)
			if err != nil {
				return err
			}
			return c.Down(cmd.Context())
		},
	}
}

func newLoadCommand(at at) *cobra.Command {
	return &cobra.Command{
		Use:   "load-image FILE...",
		Short: "load the images in these files on each node (docker-archive or OCI)",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := at(cmd)
			if err != nil {
				return err
			}
			return c.LoadImages(cmd.Context(), args...)
		},
	}
}

func newProgramImageCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "program-image PROGRAM TAG FILE",
		Short: "write an image of one static program",
		Args:  cobra.ExactArgs(3),
		RunE: func(_ *cobra.Command, args []string) error {
			return cluster.WriteProgramImage(args[0], args[1], args[2])
		},
	}
}

func newKubectlCommand(at at) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubectl ARGS...",
		Short: "run kubectl as the cluster's administrator",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := at(cmd)
			if err != nil {
				return err
			}
			if err := c.Check(); err != nil {
				return err
			}
			return replaceBy(c.Kubectl(), args)
		},
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func newExecCommand(at at) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec NODE COMMAND...",
		Short: "run a command on the network of a node, with KUBECONFIG set",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := at(cmd)
			if err != nil {
				return err
			}
			node, err := strconv.Atoi(args[0])
			if err != nil {
				return fmt.Errorf("node %q: it must be a number", args[0])
			}
			if err := c.CheckNode(node); err != nil {
				return err
			}
			return replaceBy(c.Node(), args)
		},
	}
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// replaceBy replaces this process with another program.
func replaceBy(program string, args []string) error {
	return syscall.Exec(program, append([]string{program}, args...), os.Environ())
}

func newStopCommand(at at) *cobra.Command {
	return &cobra.Command{
		Use:   "stop PROCESS",
		Short: "kill a process of the cluster: etcd, apiserver, controller-manager, scheduler, or containerd2, kubelet2, proxy2 of node 2",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := at(cmd)
			if err != nil {
				return err
			}
			return c.Stop(cmd.Context(), args[0])
		},
	}
}

func newStartCommand(at at) *cobra.Command {
	return &cobra.Command{
		Use:   "start PROCESS",
		Short: "start a stopped process again, with the same arguments",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := at(cmd)
			if err != nil {
				return err
			}
			return c.Start(cmd.Context(), args[0])
		},
	}
}
