package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/names"
	"github.com/sonde-mesh/sonde/internal/settings"
)

func (c *cli) generate() *cobra.Command {
	cmd := &cobra.Command{Use: "generate", Short: "Make a token, or Envoy's configuration from files"}
	cmd.AddCommand(c.generateToken(), c.generateEnvoy())
	return cmd
}

func (c *cli) generateToken() *cobra.Command {
	request := &adminv1.GenerateDataplaneTokenRequest{}
	var life mesh.Duration
	cmd := &cobra.Command{
		Use:   "dataplane-token --name NAME",
		Short: "Make a token with which an agent joins the mesh",
		Long: `Make a token with which the agent of one dataplane joins the mesh and gets its first certificate. The token is only
written to stdout: the control plane does not keep it. Any client that has it can join as that dataplane while it is valid. Its
end is written to stderr.

The workload is what the proxy's certificate will identify. It must be that of the Dataplane (its label kuma.io/workload,
else the tag of that name, else kuma.io/service), and may be left out if the control plane has the Dataplane already. A token
for another workload than that of the Dataplane is refused: change the Dataplane first.

An agent whose certificate on disk is valid joins with that, and needs no token: see docs/tokens.md for what happens when a
token ends, and for how to renew tokens.`,
		Example: `  sondectl generate dataplane-token --name web-1 --workload web > web-1.token
  sondectl generate dataplane-token --name web-1 --mesh shop --valid-for 1h`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().Var(&names.Flag{To: &request.Name, Among: []names.Kind{names.Dataplane}}, "name", "`NAME` of the Dataplane")
	request.Mesh = mesh.DefaultMesh
	c.addMesh(cmd, &request.Mesh, "`MESH` of the Dataplane")
	cmd.Flags().StringVar(&request.Workload, "workload", "", "`WORKLOAD` of the Dataplane")
	cmd.Flags().TextVar(&life, "valid-for", mesh.Duration(24*time.Hour), "how `LONG` the token is valid, such as 30m, 24h, 7d")
	settings.Must(cmd.MarkFlagRequired("name"))
	settings.Must(cmd.RegisterFlagCompletionFunc("name", c.completeNames(&adminv1.Filter{}, dataplanes)))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		request.ValidFor = durationpb.New(life.Std())
		response, err := ask(cmd.Context(), c, adminv1.AdminServiceClient.GenerateDataplaneToken, request)
		if err != nil {
			return err
		}
		fmt.Fprintln(&c.out, response.GetToken())
		if expires := response.GetExpires(); expires != nil { // an older control plane does not say
			cmd.PrintErrf("sondectl: the token expires at %s, in %s\n", expires.AsTime().Format(time.RFC3339), describe.Until(expires))
		}
		return nil
	}
	return cmd
}
