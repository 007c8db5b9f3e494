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
		Short: "Keep the endpoints of a zone while its nodes are unreachable",
		Long: `Keep the endpoints of a zone that Kubernetes removes because their nodes are unreachable, until sondectl thaw. Use this
for maintenance of the zone's network. The control plane itself freezes a zone once most nodes of the zone or the mesh
are unreachable. While a zone is frozen, the control plane grants no restarts of guarded containers in the whole mesh,
and keeps all facts about silent proxies.

Any replica of the control plane accepts the command and forwards it to the leader. The zone stays frozen under a new
leader.`,
		Example: "  sondectl freeze --zone eu-west-1a",
	})
}

func (c *cli) thaw() *cobra.Command {
	return c.orderZone(&adminv1.FreezeZoneRequest{Thaw: true}, &cobra.Command{
		Use:   "thaw --zone ZONE",
		Short: "Release the endpoints of a frozen zone, a tenth at a time",
		Long: `Release the endpoints that a frozen zone keeps, a tenth every three seconds. sondectl freeze stops the release.

If the control plane froze the zone itself, it does not freeze it again for the same loss, but only if the zone is lost
again after its nodes were seen and, if most nodes of the mesh were silent, the mesh's nodes were seen.`,
		Example: "  sondectl thaw --zone eu-west-1a",
	})
}

// orderZone completes freeze or thaw, which sends the request.
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

// zoneText describes the state of a zone.
func zoneText(zone string, done *adminv1.FreezeZoneResponse) string {
	text := fmt.Sprintf("zone %s is not frozen", zone)
	switch kept := done.GetKeptPercent(); {
	case kept >= 100:
		text = fmt.Sprintf("zone %s is frozen for %s", zone, describe.Since(done.GetSince()))
	case kept > 0:
		text = fmt.Sprintf("zone %s is thawing: %d %% of the endpoints are still kept", zone, kept)
	}
	if done.GetDryRun() {
		text += " (dry run: nothing is changed)"
	}
	return text
}
