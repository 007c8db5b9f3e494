package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/names"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/settings"
)

const inspectHelp = `Show the configuration and state of a dataplane's Envoy, or the configuration that it should have.

From Envoy itself, through its agent and without secrets:
  config-dump  its complete configuration, JSON
  stats        all its statistics
  clusters     its clusters and their endpoints, with health and statistics
  logging      the levels of its loggers

From the control plane, the resources that Envoy should have, even if it is disconnected; "sondectl get proxies" shows
whether Envoy has accepted them:
  listeners, endpoints, routes, bootstrap, and with --desired clusters

NAME is searched in all meshes; set --mesh if several meshes have it.`

// inspectTimeout limits the time for Envoy's response.
const inspectTimeout = 50 * time.Second

func (c *cli) inspect() *cobra.Command {
	cmd := &cobra.Command{Use: "inspect", Short: "Show the actual or desired configuration of a proxy"}
	cmd.AddCommand(c.inspectDataplane())
	return cmd
}

// inspection holds the flags of inspect dataplane.
type inspection struct {
	mesh, name string
	view       *settings.Choice[adminv1.Kind]
	desired    bool
	output     *settings.Choice[printer.Format]
}

func (c *cli) inspectDataplane() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "dataplane NAME --type KIND",
		Aliases: names.Dataplane.Words(),
		Short:   "Show the actual or desired configuration of a dataplane's Envoy",
		Long:    inspectHelp,
		Example: `  sondectl inspect dataplane web-1 --type config-dump
  sondectl inspect dataplane web-1 --type listeners
  sondectl inspect dataplane web-1 --mesh default --type clusters --desired -o json`,
		Args: cobra.ExactArgs(1),
	}
	i := &inspection{output: printer.AddFormat(cmd, printer.YAML, printer.JSON), view: &settings.Choice[adminv1.Kind]{Among: inspectTypes()}}
	i.view.Add(cmd, "type", "", "`TYPE` of information")
	c.addMesh(cmd, &i.mesh, "`MESH` of the dataplane")
	cmd.Flags().BoolVar(&i.desired, "desired", false, "show the clusters that Envoy should have instead of its actual ones")
	settings.Must(cmd.MarkFlagRequired("type"))
	cmd.ValidArgsFunction = c.completeNames(&adminv1.Filter{}, dataplanes)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		_, name, err := names.Parse(args[0], names.Dataplane)
		if err != nil {
			return err
		}
		i.name = name
		own := slices.Contains(mesh.EnvoyViews(), mesh.EnvoyView(i.view.Value))
		switch {
		case i.desired && !slices.Contains(adminv1.Kinds(), i.view.Value):
			return settings.Usagef("--desired: must not be set with --type %s, which only Envoy has", i.view.Value)
		case !own || i.desired:
			return c.inspectDesired(cmd.Context(), i)
		case cmd.Flags().Changed("output"):
			return settings.Usagef("-o: must not be set with --type %s, which is Envoy's own text", i.view.Value)
		}
		return c.inspectEnvoy(cmd.Context(), i)
	}
	return cmd
}

// inspectTypes are the views from Envoy, and the kinds of resources from the control plane.
func inspectTypes() []adminv1.Kind {
	var all []adminv1.Kind
	for _, v := range mesh.EnvoyViews() {
		all = append(all, adminv1.Kind(v))
	}
	for _, k := range adminv1.Kinds() {
		if !slices.Contains(all, k) {
			all = append(all, k)
		}
	}
	return all
}

// inspectDesired writes the resources that the control plane sends to the Envoy.
func (c *cli) inspectDesired(ctx context.Context, i *inspection) error {
	request := &adminv1.InspectDataplaneRequest{Mesh: i.mesh, Name: i.name, Kind: string(i.view.Value)}
	response, err := ask(ctx, c, adminv1.AdminServiceClient.InspectDataplane, request)
	if err != nil {
		return err
	}
	return writeKind(&c.out, i.output.Value, i.view.Value, response.GetResources())
}

// inspectEnvoy writes Envoy's response.
func (c *cli) inspectEnvoy(ctx context.Context, i *inspection) error {
	return c.callWithin(ctx, inspectTimeout, func(ctx context.Context, api adminv1.AdminServiceClient) error {
		stream, err := api.InspectEnvoy(ctx, &adminv1.InspectEnvoyRequest{Mesh: i.mesh, Name: i.name, View: string(i.view.Value)})
		for err == nil {
			var part *adminv1.InspectEnvoyPart
			if part, err = stream.Recv(); err == nil {
				c.out.Write(part.GetData())
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	})
}

// writeKind writes resources under the name of their kind. inspect and "generate envoy" have the same format, so that
// users can compare their outputs. The bootstrap is one document, the other kinds are lists.
func writeKind(w *printer.Output, f printer.Format, kind adminv1.Kind, resources [][]byte) error {
	list := make([]json.RawMessage, len(resources))
	for i, body := range resources {
		list[i] = body
	}
	document := map[adminv1.Kind]any{kind: list}
	if kind == adminv1.KindBootstrap && len(list) == 1 {
		document[kind] = list[0]
	}
	return printer.Write(w, f, document, nil)
}
