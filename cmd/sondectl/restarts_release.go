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
		Short: "Let a workload restart again whose restarts did not help",
		Long: `Let a workload restart again whose restarts did not help: two in a row have failed again before they had passed once, so that it waits until its
pod template changes. After this it may restart as any other, until two in a row do not help again. For a fault that is mended outside of its
pods, such as a database.

WORKLOAD is Kind/namespace/name, as sondectl restarts writes it, or kind/name with --namespace. A workload that does not wait is left as it is.`,
		Example: "  sondectl restarts release Deployment/shop/web\n  sondectl restarts release deployment/web -n shop",
		Args:    cobra.ExactArgs(1),
	}
	c.addNamespace(cmd, &request.Namespace, "`NAMESPACE` of a workload that is named without one")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
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
			fmt.Fprintf(&c.out, "%s does not wait: no restart that did not help counts\n", workload)
		case 1:
			fmt.Fprintf(&c.out, "%s is released: 1 restart that did not help counts no more\n", workload)
		default:
			fmt.Fprintf(&c.out, "%s is released: %d restarts that did not help count no more\n", workload, n)
		}
		return nil
	}
	return cmd
}
