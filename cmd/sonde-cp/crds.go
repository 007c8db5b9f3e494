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
)

// applyTimeout of all definitions: an API server serves a new one within a second or two.
const applyTimeout = time.Minute

// newApplyCRDs returns the command that the chart runs before an upgrade.
func newApplyCRDs() *cobra.Command {
	var k controlplane.Kubernetes
	cmd := &cobra.Command{
		Use:   "apply-crds",
		Short: "Bring the CustomResourceDefinitions of a cluster to those of this version",
		Long: `Bring the CustomResourceDefinitions of a cluster to those of this version, and wait until they are served.

The chart has this run before it installs and upgrades. What a newer version has written stays as it is.`,
		Example: "  sonde-cp apply-crds --kubeconfig=$HOME/.kube/config",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), applyTimeout)
			defer cancel()
			return mesh.RenameFields(applyCRDs(ctx, &k), flagOf)
		},
	}
	cmd.Flags().StringVar(&k.Kubeconfig, "kubeconfig", "", "`FILE` with the address of the API server; without it the program is in a pod")
	return cmd
}

func applyCRDs(ctx context.Context, k *controlplane.Kubernetes) error {
	config, err := k.Config()
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of the API server: %w", err)
	}
	return definitions.Apply(ctx, definitions.Options{
		Client: client, Files: crds.Files, Version: buildinfo.Of("").Version, Logger: newLogger(slog.LevelInfo),
	})
}
