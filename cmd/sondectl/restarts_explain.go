package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/names"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

const explainRestartHelp = `Say of each guarded container of a pod what its liveness probe finds, what the leader of the control plane has decided, what would let it restart,
and what counts for its workload: what it may lose and what says so, and the restarts that are in progress, of the last hour, or still count.

OUTCOME  open       the kubelet is told that the check fails
         spent      it has restarted, and its probe has not been checked since
         helped     the check has passed since
         unhelpful  the check has failed since, and never passed: two in a row, and the workload waits
         released   as unhelpful, and counts no more since sondectl restarts release
         refunded   it has not restarted: the check has passed before, or the time for it was over
         gone       its pod is gone
PLACE    yes if it is in progress, and takes a place of the workload`

func (c *cli) explainRestart() *cobra.Command {
	request := &adminv1.ExplainRestartRequest{}
	cmd := &cobra.Command{
		Use:     "explain POD",
		Short:   "Say why the containers of a pod restart or not",
		Long:    explainRestartHelp,
		Example: "  sondectl restarts explain web-0 -n shop\n  sondectl restarts explain web-0 -n shop -o json",
		Args:    cobra.ExactArgs(1),
	}
	output := printer.AddFormat(cmd, printer.Text, printer.YAML, printer.JSON)
	c.addNamespace(cmd, &request.Namespace, "`NAMESPACE` of the pod; default the only one that has it")
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.completeRestarts(cmd.Context(), request.GetNamespace(), prefix, func(found *adminv1.ListRestartsResponse) (names []string) {
			for _, r := range found.GetRestarts() {
				names = append(names, r.GetPod())
			}
			return names
		})
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		_, pod, err := names.Parse(args[0], names.Pod)
		if err != nil {
			return err
		}
		request.Pod = pod
		answer, err := ask(cmd.Context(), c, adminv1.AdminServiceClient.ExplainRestart, request)
		if err != nil {
			return err
		}
		reportRound(cmd, answer.GetRound(), answer.GetMissingReplicas())
		return printer.Write(&c.out, output.Value, printer.Message{Message: answer}, func() { c.writeExplanation(answer) })
	}
	return cmd
}

// writeExplanation writes a table of what holds, and one of grants.
func (c *cli) writeExplanation(a *adminv1.ExplainRestartResponse) {
	facts := &printer.Facts{}
	facts.Add("pod", podText(a))
	facts.Add("agent", agentText(a))
	w := a.GetWorkload()
	facts.Add("workload", w.GetName())
	facts.Add("  pods", fmt.Sprintf("%d desired, %d available", w.GetReplicas(), w.GetAvailable()))
	facts.Add("  may lose", fmt.Sprintf("%d at a time: %s", w.GetMaxUnavailable(), w.GetSource()))
	facts.Add("  in progress", strconv.FormatUint(uint64(w.GetInProgress()), 10))
	if w.GetUnhelpful() {
		facts.Add("  waits", "restarts have not helped: it waits for another pod template, or for sondectl restarts release "+w.GetName())
	}
	for _, container := range a.GetContainers() {
		addContainer(facts, container, a.GetRound())
	}
	facts.Write(&c.out)
	c.writeGrants(w)
}

func podText(a *adminv1.ExplainRestartResponse) string {
	ready := "Ready"
	if !a.GetReady() {
		ready = "not Ready"
	}
	return fmt.Sprintf("%s/%s on node %s, %s", a.GetNamespace(), a.GetPod(), a.GetNode(), ready)
}

// agentText says whether the agent can hold failures back, and hears of grants.
func agentText(a *adminv1.ExplainRestartResponse) string {
	phase, since := describe.Phase(a.GetAgent()), describe.Since(a.GetAgent().GetSince())
	switch {
	case phase == "":
		return "not known to the control plane: what its checks find is not known, and it is told of no grant"
	case a.GetAgent().GetPhase() == adminv1.AgentState_CONNECTED && a.GetAgentOutdated():
		return fmt.Sprintf("connected for %s, but version %s is too old to hold failures back (feature restart-grants): the kubelet is told the truth", since, a.GetAgentVersion())
	case a.GetAgent().GetPhase() == adminv1.AgentState_CONNECTED:
		return "connected for " + since
	case since == "":
		return phase + ": it has no session, so that what its checks find is not known, and it is told of no grant"
	}
	return fmt.Sprintf("%s for %s: it has no session, so that what its checks find now is not known, and it is told of no grant", phase, since)
}

func addContainer(f *printer.Facts, c *adminv1.GuardedContainer, round *adminv1.RestartRound) {
	f.Add("container", fmt.Sprintf("%s, restart count %d", c.GetName(), c.GetRestarts()))
	check := map[adminv1.GuardedContainer_Check]string{adminv1.GuardedContainer_PASSES: "passes", adminv1.GuardedContainer_FAILS: "fails"}[c.GetCheck()]
	switch {
	case check == "":
		check = "not known: its agent has said nothing of it"
	case c.GetCheck() == adminv1.GuardedContainer_FAILS:
		check = fmt.Sprintf("fails for %s: %s", describe.Since(c.GetSince()), c.GetFailure())
	}
	f.Add("  check", check)
	r := c.GetRestart()
	if r == nil {
		f.Add("  state", "neither fails nor restarts")
		return
	}
	f.Add("  state", fmt.Sprintf("%s for %s", restartState(r.GetState()), describe.Since(r.GetSince())))
	f.Add("  why", r.GetWhy())
	d := r.GetDecision()
	if d == nil || r.GetState() == adminv1.Restart_RESTARTING {
		return
	}
	f.Add("  decided", fmt.Sprintf("%s (%s), %s by %s, epoch %d", d.GetVerdict(), d.GetReason(), agoText(round.GetAt()), round.GetReplica(), round.GetEpoch()))
	f.Add("  needs", d.GetNeeds())
}

func (c *cli) writeGrants(w *adminv1.RestartWorkload) {
	c.out.WriteByte('\n')
	if len(w.GetGrants()) == 0 {
		c.out.WriteString("no restart of the workload was granted within the last hour\n")
		return
	}
	rows := make([]printer.Row, 0, len(w.GetGrants()))
	for _, g := range w.GetGrants() {
		rows = append(rows, printer.Row{Cells: []string{
			g.GetPod(), g.GetContainer(), strconv.FormatUint(uint64(g.GetRestarts()), 10), outcomeText(g), placeText(g),
			agoText(g.GetGranted()), agoText(g.GetSpent()), agoText(g.GetJudged()), agoText(g.GetEnded()),
		}})
	}
	printer.WriteTable(&c.out, []string{"POD", "CONTAINER", "RESTARTS", "OUTCOME", "PLACE", "GRANTED", "RESTARTED", "JUDGED", "ENDED"}, rows)
	if n := w.GetLeftOut(); n > 0 {
		fmt.Fprintf(&c.out, "and %d more: kubectl get restartgrants -n %s\n", n, namespaceOf(w.GetName()))
	}
}

// outcomeText returns what has become of a grant, in one word, and whether that was in a dry run.
func outcomeText(g *adminv1.RestartGrant) string {
	text := g.GetOutcome()
	switch {
	case g.GetEnded() == nil && !g.GetInProgress() && (text == "" || text == "spent"):
		text = "gone"
	case text == "":
		text = "open"
	}
	if g.GetDryRun() {
		text += "(dry-run)"
	}
	return text
}

func placeText(g *adminv1.RestartGrant) string {
	if g.GetInProgress() {
		return "yes"
	}
	return "no"
}

// namespaceOf returns that of Kind/namespace/name, to be shown.
func namespaceOf(workload string) string {
	_, rest, _ := strings.Cut(workload, "/")
	namespace, _, _ := strings.Cut(rest, "/")
	return printer.OneLine(namespace)
}
