package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/dynamic"

	"github.com/sonde-mesh/sonde/api/crds"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/definitions"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/internal/buildinfo"
	"github.com/sonde-mesh/sonde/internal/logging"
)

// applyTimeout bounds the update of all definitions. An API server serves a new one within a second or two.
const applyTimeout = time.Minute

// newApplyCRDs returns the command that the chart runs before an upgrade.
func newApplyCRDs() *cobra.Command {
	var k controlplane.Kubernetes
	cmd := &cobra.Command{
		Use:   "apply-crds",
		Short: "Update the CustomResourceDefinitions of a cluster to this version",
		Long: `Update the CustomResourceDefinitions of a cluster to this version, and wait until they are served.

The chart runs this before it installs and upgrades. Definitions written by a newer version are kept.`,
		Example: "  sonde-cp apply-crds --kubeconfig=$HOME/.kube/config",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), applyTimeout)
			defer cancel()
			return mesh.RenameFields(applyCRDs(ctx, &k), flagOf)
		},
	}
	cmd.Flags().StringVar(&k.Kubeconfig, "kubeconfig", "", "kubeconfig `FILE`; without it the program uses the in-cluster configuration")
	return cmd
}

func applyCRDs(ctx context.Context, k *controlplane.Kubernetes) error {
	config, err := k.Config()
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create client for the API server: %w", err)
	}
	return definitions.Apply(ctx, definitions.Options{
		Client: client, Files: crds.Files, Version: buildinfo.Of("").Version, Logger: newLogger(slog.LevelInfo, logging.Auto),
	})
}
