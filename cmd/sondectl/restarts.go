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

const restartsHelp = `Show the containers with guarded liveness whose liveness probe fails, or that restart (docs/guarded-liveness.md).

STATE   waiting     the probe fails, and no restart is granted: the kubelet is not told
        granted     the kubelet is told, and will restart the container
        restarting  it has restarted, and that takes a place of its workload until its pod is Ready and its probe has been checked again
        unhelpful   as waiting: restarts of its workload have not helped, so that it waits for another pod template, or for sondectl
                    restarts release
SINCE   for how long it fails, is granted a restart, or has restarted
WHY     what the leader of the control plane has decided last; why the check fails is on a line of its own

That nothing is granted (the breaker is open, the mode is not enforce, no leader decides), and which workloads wait since restarts have not
helped, is written to stderr.`

func (c *cli) restarts() *cobra.Command {
	var namespace string
	cmd := &cobra.Command{
		Use:     "restarts",
		Short:   "Show which containers fail and wait for a restart, or restart",
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
		l, err := newListing("NAMESPACE POD CONTAINER STATE SINCE WHY", found.GetRestarts(), showMessage(restartRow))
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

// completeRestarts completes what names returns of a list. Without a control plane it completes nothing.
func (c *cli) completeRestarts(ctx context.Context, namespace, prefix string, names func(*adminv1.ListRestartsResponse) []string) ([]cobra.Completion, cobra.ShellCompDirective) {
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
		r.GetNamespace(), r.GetPod(), r.GetContainer(), restartState(r.GetState()), describe.Since(r.GetSince()), r.GetWhy(),
	}}
	if r.GetFailure() != "" {
		row.Notes = []string{"fails: " + r.GetFailure()}
	}
	return row
}

// restartState returns a state as one word in lower case, "" if the control plane does not say it.
func restartState(s adminv1.Restart_State) string {
	if s == adminv1.Restart_STATE_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(s.String())
}

// reportRestarts writes to stderr what holds for all containers of a list.
func reportRestarts(cmd *cobra.Command, found *adminv1.ListRestartsResponse, namespace string) {
	if n := found.GetTail().GetLeftOut(); n > 0 {
		cmd.PrintErrf("sondectl: %d more are not shown: give a --namespace\n", n)
	}
	reportRound(cmd, found.GetRound(), found.GetTail().GetMissingReplicas())
	for i, workload := range found.GetUnhelpful() {
		if rest := len(found.GetUnhelpful()) - i; i == maxReleases && rest > 1 {
			cmd.PrintErrf("sondectl: restarts of %d more workloads have not helped\n", rest)
			break
		}
		name := printer.OneLine(workload)
		cmd.PrintErrf("sondectl: restarts of %s have not helped: it waits for another pod template, or for: sondectl restarts release %s\n", name, name)
	}
	if len(found.GetRestarts()) == 0 {
		where := "all namespaces"
		if namespace != "" {
			where = "namespace " + namespace
		}
		cmd.PrintErrf("sondectl: of %d guarded containers in %s none fails or restarts\n", found.GetGuarded(), where)
	}
}

// maxReleases is how many workloads are named that could be released.
const maxReleases = 10

// reportRound writes to stderr why nothing is granted, whatever fails, and which replicas are not heard.
func reportRound(cmd *cobra.Command, r *adminv1.RestartRound, missing []string) {
	if len(missing) > 0 {
		cmd.PrintErrf("sondectl: replica %s of the control plane is not heard: what agents have said there since, and what it has decided, is missing\n", printer.OneLine(strings.Join(missing, ", ")))
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
