package main

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/cluster"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/cmd/sondectl/why"
	"github.com/sonde-mesh/sonde/internal/settings"
)

const whyPodHelp = `For pod/NAME, a paragraph says why the pod is not ready, not in the mesh, or gets no traffic, or that it is well. The
command reads the pod with your rights in the cluster, and calls the control plane. Below the paragraph are all findings
in the order of a pod's life, each with its source (a condition, a status, an event, the control plane) and its
duration. If the control plane cannot be reached, the output says what is unknown.`

// whyPod writes the report about a pod.
func (c *cli) whyPod(cmd *cobra.Command, objects *cluster.Objects, name string, format printer.Format) error {
	call, err := c.beside()
	if err != nil {
		return err
	}
	in, err := cluster.Open(c.cluster)
	if errors.Is(err, cluster.ErrNoKubeconfig) {
		return settings.Usagef("pods are read from an API server, and %w: set --%s", err, cluster.FlagKubeconfig)
	}
	if err != nil {
		return err
	}
	facts, err := why.Read(cmd.Context(), in, objects.NamespaceIn(in), name)
	if err != nil {
		return err
	}
	if facts.Wanted() {
		err := call(cmd.Context(), func(ctx context.Context, api adminv1.AdminServiceClient) error {
			return why.Ask(ctx, api, facts)
		})
		if err != nil {
			facts.NotAsked = append(facts.NotAsked, "the control plane: "+strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	report := why.Judge(facts)
	return printer.Write(&c.out, format, report, func() { report.Write(&c.out) })
}
