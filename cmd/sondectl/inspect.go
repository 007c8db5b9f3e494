package main

import (
	"context"
	"encoding/json"
	"io"

	"github.com/spf13/cobra"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

func (c *cli) inspect() *cobra.Command {
	cmd := &cobra.Command{Use: "inspect", Short: "Show what a proxy should have"}
	cmd.AddCommand(c.inspectDataplane())
	return group(cmd)
}

func (c *cli) inspectDataplane() *cobra.Command {
	request := &adminv1.InspectDataplaneRequest{}
	cmd := &cobra.Command{
		Use:   "dataplane NAME --type KIND",
		Short: "Show the Envoy resources that a proxy should have",
		Long: `Show the Envoy resources that a proxy should have, whether or not it is connected. "sondectl get proxies" shows whether
it has accepted them.

NAME may be in any mesh; --mesh is needed if several meshes have it.`,
		Example: `  sondectl inspect dataplane web-1 --type listeners
  sondectl inspect dataplane web-1 --type clusters -o json
  sondectl inspect dataplane web-1 --mesh default --type bootstrap`,
		Args: cobra.ExactArgs(1),
	}
	output := addFormat(cmd, yamlFormat, jsonFormat)
	kind := &choice[adminv1.Kind]{among: adminv1.Kinds()}
	kind.add(cmd, "type", "", "what to show")
	cmd.Flags().StringVar(&request.Mesh, "mesh", "", "`MESH` of the dataplane")
	must(cmd.MarkFlagRequired("type"))
	must(cmd.RegisterFlagCompletionFunc("mesh", c.completeMeshes))
	cmd.ValidArgsFunction = c.completeNames(collections()[1], &adminv1.Filter{})
	cmd.RunE = c.action(func(cmd *cobra.Command, args []string) error {
		request.Name, request.Kind = args[0], string(kind.value)
		var response *adminv1.InspectDataplaneResponse
		err := c.call(cmd.Context(), func(ctx context.Context, api adminv1.AdminServiceClient) (err error) {
			response, err = api.InspectDataplane(ctx, request)
			return err
		})
		if err != nil {
			return err
		}
		return writeKind(&c.out, output.value, kind.value, response.GetResources())
	})
	return cmd
}

// writeKind writes resources under the name of their kind, in the same form for inspect and for "generate envoy", so that
// their outputs can be compared. The bootstrap is one document, the others are lists.
func writeKind(w io.Writer, f format, kind adminv1.Kind, resources [][]byte) error {
	list := make([]json.RawMessage, len(resources))
	for i, body := range resources {
		list[i] = body
	}
	document := map[adminv1.Kind]any{kind: list}
	if kind == adminv1.KindBootstrap && len(list) == 1 {
		document[kind] = list[0]
	}
	if f == jsonFormat {
		return writeJSON(w, document)
	}
	return writeYAML(w, document)
}
