package main

import (
	"fmt"

	"github.com/spf13/cobra"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/settings"
)

func (c *cli) releaseRestarts() *cobra.Command {
	request := &adminv1.ReleaseRestartsRequest{}
	cmd := &cobra.Command{
		Use:   "release WORKLOAD",
		Short: "Allow a workload whose restarts did not help to restart again",
		Long: `Allow a workload whose restarts did not help to restart again. After two restarts in a row whose probes never passed, a
workload waits until its pod template changes. A released workload may restart like any other, until two in a row do not
help again. Use this after you have fixed a cause outside of the pods, such as a database.

WORKLOAD is Kind/namespace/name, as sondectl restarts prints it, or kind/name with --namespace. If the workload does not
wait, the command changes nothing.`,
		Example: "  sondectl restarts release Deployment/shop/web\n  sondectl restarts release deployment/web -n shop",
		Args:    cobra.ExactArgs(1),
	}
	c.addNamespace(cmd, &request.Namespace, "`NAMESPACE` of WORKLOAD, if it is kind/name")
	cmd.ValidArgsFunction = func(
		cmd *cobra.Command, args []string, prefix string,
	) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.completeRestarts(cmd.Context(), request.GetNamespace(), prefix, (*adminv1.ListRestartsResponse).GetUnhelpful)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if request.Workload = args[0]; request.Workload == "" {
			return settings.Usagef("WORKLOAD: must not be empty")
		}
		answer, err := ask(cmd.Context(), c, adminv1.AdminServiceClient.ReleaseRestarts, request)
		if err != nil {
			return err
		}
		workload := printer.OneLine(answer.GetWorkload())
		switch n := answer.GetReleased(); n {
		case 0:
			fmt.Fprintf(&c.out, "%s does not wait: it has no restarts that did not help\n", workload)
		case 1:
			fmt.Fprintf(&c.out, "released %s: 1 restart that did not help no longer counts\n", workload)
		default:
			fmt.Fprintf(&c.out, "released %s: %d restarts that did not help no longer count\n", workload, n)
		}
		return nil
	}
	return cmd
}
