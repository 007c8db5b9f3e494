package main

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/settings"
)

const restartsHelp = `Show guarded containers whose liveness probe fails, or that are restarting (docs/guarded-liveness.md).

STATE   waiting     the probe fails, and no restart is granted: the agent does not report the failure to the kubelet
        granted     the agent reports the failure, and the kubelet will restart the container
        restarting  the container has restarted, and counts against its workload's limit until its pod is Ready and its
                    probe has run again
        unhelpful   like waiting, but restarts of its workload have not helped, so that it waits for a change of the pod
                    template, or for sondectl restarts release
SINCE   time since the probe fails, the restart is granted, or the container has restarted

Lines below a container have the last decision of the control plane's leader, and why the probe fails.

If no restarts are granted (the breaker is open, the mode is not enforce, or there is no leader), the command prints the
reason to stderr. It also prints the workloads that wait because restarts have not helped.`

const restartsHeader = "NAMESPACE POD CONTAINER STATE SINCE"

func (c *cli) restarts() *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:     "restarts",
		Short:   "Show guarded containers that fail and wait for a restart, or are restarting",
		Long:    restartsHelp,
		Example: "  sondectl restarts\n  sondectl restarts -n shop -o json\n  sondectl restarts explain web-0 -n shop\n  sondectl restarts release deployment/web -n shop",
		Args:    cobra.NoArgs,
	}
	output := printer.AddFormat(cmd, printer.Table, printer.YAML, printer.JSON)
	c.addNamespace(cmd, &namespace, "only of this `NAMESPACE`; default all")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		found, err := c.listRestarts(cmd.Context(), namespace)
		if err != nil {
			return err
		}
		reportRestarts(cmd, found, namespace)
		l, err := newListing(restartsHeader, found.GetRestarts(), showMessage(restartRow))
		if err != nil {
			return err
		}
		return l.write(&c.out, output.Value)
	}
	cmd.AddCommand(c.explainRestart(), c.releaseRestarts())
	return cmd
}

// addNamespace adds the flag -n.
func (c *cli) addNamespace(cmd *cobra.Command, namespace *string, usage string) {
	cmd.Flags().StringVarP(namespace, "namespace", "n", "", usage)
	settings.Must(cmd.RegisterFlagCompletionFunc("namespace", func(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return c.completeRestarts(cmd.Context(), "", prefix, func(found *adminv1.ListRestartsResponse) (names []string) {
			for _, r := range found.GetRestarts() {
				names = append(names, r.GetNamespace())
			}
			return names
		})
	}))
}

// completeRestarts completes the values that names returns for a list. Without a control plane it completes nothing.
func (c *cli) completeRestarts(
	ctx context.Context, namespace, prefix string, names func(*adminv1.ListRestartsResponse) []string,
) ([]cobra.Completion, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	found, err := c.listRestarts(ctx, namespace)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all := names(found)
	slices.Sort(all)
	all = slices.DeleteFunc(slices.Compact(all), func(name string) bool { return !strings.HasPrefix(name, prefix) })
	return all, cobra.ShellCompDirectiveNoFileComp
}

func (c *cli) listRestarts(ctx context.Context, namespace string) (*adminv1.ListRestartsResponse, error) {
	return ask(ctx, c, adminv1.AdminServiceClient.ListRestarts, &adminv1.ListRestartsRequest{Namespace: namespace})
}

func restartRow(r *adminv1.Restart) printer.Row {
	row := printer.Row{Cells: []string{
		r.GetNamespace(), r.GetPod(), r.GetContainer(), restartState(r.GetState()), describe.Since(r.GetSince()),
	}}
	if r.GetWhy() != "" {
		row.Notes = append(row.Notes, r.GetWhy())
	}
	if r.GetFailure() != "" {
		row.Notes = append(row.Notes, "fails: "+r.GetFailure())
	}
	return row
}

// restartState returns a state in lower case, "" if the control plane does not report it.
func restartState(s adminv1.Restart_State) string {
	if s == adminv1.Restart_STATE_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(s.String())
}

// reportRestarts writes to stderr facts about all containers of a list.
func reportRestarts(cmd *cobra.Command, found *adminv1.ListRestartsResponse, namespace string) {
	if n := found.GetTail().GetLeftOut(); n > 0 {
		cmd.PrintErrf("sondectl: %d more are not shown: set --namespace\n", n)
	}
	reportRound(cmd, found.GetRound(), found.GetTail().GetMissingReplicas())
	for i, workload := range found.GetUnhelpful() {
		if rest := len(found.GetUnhelpful()) - i; i == maxReleases && rest > 1 {
			cmd.PrintErrf("sondectl: restarts of %d more workloads have not helped\n", rest)
			break
		}
		name := printer.OneLine(workload)
		cmd.PrintErrf("sondectl: restarts of %s have not helped: it waits for a change of its pod template, or for: sondectl restarts release %s\n", name, name)
	}
	if len(found.GetRestarts()) == 0 {
		where := "all namespaces"
		if namespace != "" {
			where = "namespace " + namespace
		}
		cmd.PrintErrf("sondectl: none of %d guarded containers in %s fails or restarts\n", found.GetGuarded(), where)
	}
}

// maxReleases limits the number of workloads in the advice to release them.
const maxReleases = 10

// reportRound writes to stderr why no restarts are granted, and which replicas are disconnected.
func reportRound(cmd *cobra.Command, r *adminv1.RestartRound, missing []string) {
	if len(missing) > 0 {
		cmd.PrintErrf("sondectl: replica %s of the control plane is disconnected: recent reports of its agents, and its decisions, are missing\n", printer.OneLine(strings.Join(missing, ", ")))
	}
	for _, text := range describe.Round(r) {
		cmd.PrintErrf("sondectl: %s\n", printer.OneLine(text))
	}
}

// agoText returns "12s ago", "" if t is nil.
func agoText(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return describe.Since(t) + " ago"
}
