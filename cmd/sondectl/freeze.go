package main

import (
	"fmt"

	"github.com/spf13/cobra"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/settings"
)

func (c *cli) freeze() *cobra.Command {
	return c.orderZone(&adminv1.FreezeZoneRequest{}, &cobra.Command{
		Use:   "freeze --zone ZONE",
		Short: "Keep the endpoints of a zone while its nodes are not seen",
		Long: `Keep the endpoints of a zone that Kubernetes takes away since their nodes are not seen, until sondectl thaw: for maintenance of what connects the zone.
The control plane does this by itself once most nodes of a zone or of the mesh are not seen; this is for what it cannot know. Meanwhile no restart of a guarded container
is granted, and nothing of silent proxies is forgotten, in the whole mesh.

Any replica of the control plane passes it on to the one that leads. A new leader goes on with it.`,
		Example: "  sondectl freeze --zone eu-west-1a",
	})
}

func (c *cli) thaw() *cobra.Command {
	return c.orderZone(&adminv1.FreezeZoneRequest{Thaw: true}, &cobra.Command{
		Use:   "thaw --zone ZONE",
		Short: "Let the endpoints of a frozen zone go, a tenth at a time",
		Long: `Let the endpoints of a frozen zone go that Kubernetes has taken away, a tenth each three seconds; sondectl freeze stops that.

A zone that the control plane has frozen by itself is not frozen again by the same loss: only once it was seen, and the whole mesh if most of its nodes
were not, and is lost anew.`,
		Example: "  sondectl thaw --zone eu-west-1a",
	})
}

// orderZone completes a command that sends the request.
func (c *cli) orderZone(request *adminv1.FreezeZoneRequest, cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.NoArgs
	cmd.Flags().StringVar(&request.Zone, "zone", "", "`ZONE`, as in the label topology.kubernetes.io/zone of nodes; required")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if request.GetZone() == "" {
			return settings.Usagef("--zone: must not be empty")
		}
		done, err := ask(cmd.Context(), c, adminv1.AdminServiceClient.FreezeZone, request)
		if err != nil {
			return err
		}
		fmt.Fprintln(&c.out, zoneText(printer.OneLine(request.GetZone()), done))
		return nil
	}
	return cmd
}

// zoneText says what a zone is.
func zoneText(zone string, done *adminv1.FreezeZoneResponse) string {
	text := fmt.Sprintf("zone %s is not frozen", zone)
	switch kept := done.GetKeptPercent(); {
	case kept >= 100:
		text = fmt.Sprintf("zone %s is frozen for %s", zone, describe.Since(done.GetSince()))
	case kept > 0:
		text = fmt.Sprintf("zone %s thaws: %d %% of the endpoints are kept, and fewer each three seconds", zone, kept)
	}
	if done.GetDryRun() {
		text += " (dry run: nothing is changed)"
	}
	return text
}
