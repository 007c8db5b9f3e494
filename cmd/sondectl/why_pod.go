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

const whyPodHelp = `Of pod/NAME it says in a paragraph why the pod is not ready, not in the mesh, or gets no traffic, or that it is well. It reads the pod with your
rights in the cluster, and asks the control plane. Below the paragraph are all findings in the order of a pod's life, each with what says so: a
condition, a status, an event, the control plane; and for how long. Without the control plane it says what it could not ask.`

// podOf returns the name of pod/NAME, and false for the name of something else. The error says what is allowed.
func podOf(target string) (name string, is bool, err error) {
	kind, name, named := strings.Cut(target, "/")
	if !named {
		return "", false, nil
	}
	if r := resourceOf(kind); r == nil || r.Resource != "pods" || name == "" || strings.Contains(name, "/") {
		return "", false, settings.Usagef("%q: must be NAME or pod/NAME", target)
	}
	return name, true, nil
}

// whyPod writes what is wrong with a pod.
func (c *cli) whyPod(cmd *cobra.Command, objects *cluster.Objects, name string, format printer.Format) error {
	call, err := c.beside()
	if err != nil {
		return err
	}
	in, err := cluster.Open(c.cluster)
	if errors.Is(err, cluster.ErrNoKubeconfig) {
		return settings.Usagef("a pod is read from an API server, and %w: give --%s", err, cluster.FlagKubeconfig)
	}
	if err != nil {
		return err
	}
	reader := why.Reader{Client: in.Client, Explain: in.Explain}
	facts, err := reader.Read(cmd.Context(), objects.NamespaceIn(in), name)
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
	switch format {
	case printer.JSON:
		return printer.WriteJSON(&c.out, report)
	case printer.YAML:
		return printer.WriteYAML(&c.out, report)
	default:
		return report.Write(&c.out)
	}
}
