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
	cmd := &cobra.Command{Use: "generate", Short: "Create a token, or Envoy's configuration from files"}
	cmd.AddCommand(c.generateToken(), c.generateEnvoy())
	return cmd
}

func (c *cli) generateToken() *cobra.Command {
	request := &adminv1.GenerateDataplaneTokenRequest{}
	var life mesh.Duration
	cmd := &cobra.Command{
		Use:   "dataplane-token --name NAME",
		Short: "Create a token with which an agent joins the mesh",
		Long: `Create a token with which the agent of one dataplane joins the mesh and gets its first certificate. The command prints
the token to stdout; the control plane does not store it. Until the token expires, any client that has it can join as
that dataplane. The command prints the expiry to stderr.

The workload is the identity in the proxy's certificate. It must match the Dataplane's workload (its label
kuma.io/workload, else the tag kuma.io/workload, else the tag kuma.io/service). You can omit it if the control plane
already has the Dataplane. The control plane rejects a token for a different workload: change the Dataplane first.

An agent with a valid certificate on disk joins with it, and needs no token. docs/tokens.md describes what happens when
a token expires, and how to renew tokens.`,
		Example: `  sondectl generate dataplane-token --name web-1 --workload web > web-1.token
  sondectl generate dataplane-token --name web-1 --mesh shop --valid-for 1h`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().Var(&names.Flag{To: &request.Name, Among: []names.Kind{names.Dataplane}}, "name",
		"`NAME` of the Dataplane")
	request.Mesh = mesh.DefaultMesh
	c.addMesh(cmd, &request.Mesh, "`MESH` of the Dataplane")
	cmd.Flags().StringVar(&request.Workload, "workload", "", "`WORKLOAD` of the Dataplane")
	cmd.Flags().TextVar(&life, "valid-for", mesh.Duration(24*time.Hour),
		"validity of the token as `DURATION`, such as 30m, 24h, 7d")
	settings.Must(cmd.MarkFlagRequired("name"))
	settings.Must(cmd.RegisterFlagCompletionFunc("name", c.completeNames(&adminv1.Filter{}, dataplanes)))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		request.ValidFor = durationpb.New(life.Std())
		response, err := ask(cmd.Context(), c, adminv1.AdminServiceClient.GenerateDataplaneToken, request)
		if err != nil {
			return err
		}
		fmt.Fprintln(&c.out, response.GetToken())
		if expires := response.GetExpires(); expires != nil { // older control planes do not return it
			cmd.PrintErrf("sondectl: the token expires at %s, in %s\n", expires.AsTime().Format(time.RFC3339), describe.Until(expires))
		}
		return nil
	}
	return cmd
}
