package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
  config-dump       its complete configuration, JSON
  stats             all its statistics
  clusters          its clusters and their endpoints, with health and statistics
  active-listeners  its listeners and their addresses
  certificates      the certificates that it presents and trusts
  logging           the levels of its loggers

From the control plane, the resources that Envoy should have, even if it is disconnected; "sondectl get proxies" shows
whether Envoy has accepted them:
  listeners, endpoints, routes, bootstrap, and with --desired clusters

Listeners, endpoints, clusters and certificates are tables. -o json and -o yaml write everything that Envoy or the
control plane says, -o text writes Envoy's own text about its clusters. Routes and bootstrap are YAML, or JSON with
-o json. The other types are always Envoy's own text.

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
	own        bool // Envoy answers, not the control plane
}

// formats returns the formats of a type, the default first.
func (i *inspection) formats() []printer.Format {
	switch {
	case i.own && i.view.Value == adminv1.KindClusters:
		return []printer.Format{printer.Table, printer.Text, printer.YAML, printer.JSON}
	case i.own && envoyTables[mesh.EnvoyView(i.view.Value)] == nil:
		return []printer.Format{printer.Text}
	case !i.own && desiredTables[i.view.Value] == nil:
		return []printer.Format{printer.YAML, printer.JSON}
	default:
		return []printer.Format{printer.Table, printer.YAML, printer.JSON}
	}
}

// chooseFormat checks the value of -o, and sets it if the user has not.
func (i *inspection) chooseFormat(set bool) error {
	among := &settings.Choice[printer.Format]{Among: i.formats()}
	if !set {
		i.output.Value = among.Among[0]
		return nil
	}
	if err := among.Set(string(i.output.Value)); err != nil {
		return settings.Usagef("-o %s: %w with --type %s", i.output.Value, err, i.view.Value)
	}
	return nil
}

func (c *cli) inspectDataplane() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "dataplane NAME --type KIND",
		Aliases: names.Dataplane.Words(),
		Short:   "Show the actual or desired configuration of a dataplane's Envoy",
		Long:    inspectHelp,
		Example: `  sondectl inspect dataplane web-1 --type config-dump
  sondectl inspect dataplane web-1 --type certificates
  sondectl inspect dataplane web-1 --type listeners -o yaml
  sondectl inspect dataplane web-1 --mesh default --type clusters --desired -o json`,
		Args: cobra.ExactArgs(1),
	}
	i := &inspection{
		output: printer.AddFormat(cmd, printer.Table, printer.Text, printer.YAML, printer.JSON),
		view:   &settings.Choice[adminv1.Kind]{Among: inspectTypes()},
	}
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
		if i.desired && !slices.Contains(adminv1.Kinds(), i.view.Value) {
			return settings.Usagef("--desired: must not be set with --type %s, which only Envoy has", i.view.Value)
		}
		i.own = slices.Contains(mesh.EnvoyViews(), mesh.EnvoyView(i.view.Value)) && !i.desired
		if err := i.chooseFormat(cmd.Flags().Changed("output")); err != nil {
			return err
		}
		if i.own {
			return c.inspectEnvoy(cmd.Context(), i)
		}
		return c.inspectDesired(cmd.Context(), i)
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
	if i.output.Value != printer.Table {
		return writeKind(&c.out, i.output.Value, i.view.Value, response.GetResources())
	}
	table, err := desiredTables[i.view.Value](response.GetResources())
	if err != nil {
		return fmt.Errorf("read the %s of the control plane's answer: %w", i.view.Value, err)
	}
	printer.WriteTable(&c.out, table.header, table.rows)
	return nil
}

// inspectEnvoy writes Envoy's response.
func (c *cli) inspectEnvoy(ctx context.Context, i *inspection) error {
	if i.output.Value == printer.Text {
		return c.readEnvoy(ctx, i, &c.out)
	}
	var text bytes.Buffer
	if err := c.readEnvoy(ctx, i, &text); err != nil {
		return err
	}
	document, table, err := envoyTables[mesh.EnvoyView(i.view.Value)](text.Bytes())
	if err != nil {
		return fmt.Errorf("read Envoy's %s: %w", i.view.Value, err)
	}
	return printer.Write(&c.out, i.output.Value, document, func() { printer.WriteTable(&c.out, table.header, table.rows) })
}

// readEnvoy passes Envoy's response to w.
func (c *cli) readEnvoy(ctx context.Context, i *inspection, w io.Writer) error {
	return c.callWithin(ctx, inspectTimeout, func(ctx context.Context, api adminv1.AdminServiceClient) error {
		stream, err := api.InspectEnvoy(ctx, &adminv1.InspectEnvoyRequest{
			Mesh: i.mesh, Name: i.name, View: string(i.view.Value),
		})
		for err == nil {
			var part *adminv1.InspectEnvoyPart
			if part, err = stream.Recv(); err == nil {
				_, err = w.Write(part.GetData())
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
