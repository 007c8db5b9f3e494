// Command testbed runs a Kubernetes cluster of several nodes on this machine, for tests. See docs/testbed.md.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/tools/cache"
	"github.com/sonde-mesh/sonde/tools/testbed/binaries"
	"github.com/sonde-mesh/sonde/tools/testbed/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testbed:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "testbed",
		Short:         "A Kubernetes cluster of several nodes on this machine",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	var state string
	cmd.PersistentFlags().StringVar(&state, "state", "", "directory of the cluster (default: $XDG_STATE_HOME/sonde/testbed or ~/.local/state/sonde/testbed)")
	at := func(cmd *cobra.Command) (*cluster.Cluster, error) {
		if state == "" {
			var err error
			if state, err = cluster.DefaultState(); err != nil {
				return nil, err
			}
		}
		return cluster.New(state, cmd.ErrOrStderr())
	}
	cmd.AddCommand(newBinariesCommand(), newCheckCommand(at), newUpCommand(at), newDownCommand(at), newLoadCommand(at),
		newProgramImageCommand(), newKubectlCommand(at), newExecCommand(at), newStopCommand(at),
		newStartCommand(at), newLinkCommand(at))
	return cmd
}

// kubernetesUsage is the usage of --kubernetes.
var kubernetesUsage = "Kubernetes: " + strings.Join(binaries.Releases(), " or ") + ", or one of these with +" +
	strings.Join(binaries.Patches(), " or +")

func newBinariesCommand() *cobra.Command {
	var only []string
	var kubernetes string
	cmd := &cobra.Command{
		Use:   "binaries",
		Short: "build the programs of a cluster that are not in the cache, and print their directory",
		Long: "Builds the programs of a cluster that are not in the cache, and prints the directory that has them all.\n" +
			"Programs: " + strings.Join(binaries.Programs(), ", ") + "\n" +
			"Only when named, for tests of a cluster: " + strings.Join(binaries.Tests(), ", "),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			getter, err := newGetter(cmd)
			if err != nil {
				return err
			}
			if getter.Kubernetes, err = binaries.ParseVersion(kubernetes); err != nil {
				return err
			}
			directory, err := getter.Get(cmd.Context(), only...)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), directory)
			return err
		},
	}
	cmd.Flags().StringSliceVar(&only, "only", nil, "programs to build, such as kube-apiserver,etcd,kubectl (default: all that a cluster needs)")
	cmd.Flags().StringVar(&kubernetes, "kubernetes", string(binaries.DefaultVersion), kubernetesUsage)
	return cmd
}

func newGetter(cmd *cobra.Command) (*binaries.Getter, error) {
	directory, err := cache.Dir()
	if err != nil {
		return nil, err
	}
	return &binaries.Getter{Cache: filepath.Join(directory, "testbed"), Progress: cmd.ErrOrStderr()}, nil
}
