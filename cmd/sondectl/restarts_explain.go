package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/names"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

const explainRestartHelp = `Show for each guarded container of a pod the result of its liveness probe, the decision of the control plane's leader,
and what would allow a restart. For its workload, show the allowed number of unavailable pods and its source, and
restarts that are in progress, from the last hour, or still count.

OUTCOME  open       the agent reports the failure to the kubelet
         spent      the container has restarted, and its probe has not run since
         helped     the probe has passed since
         unhelpful  the probe has failed since, and never passed: after two in a row, the workload waits
         released   as unhelpful, but no longer counts after sondectl restarts release
         refunded   the container has not restarted: the probe has passed first, or the grant has expired
         gone       the pod no longer exists
PLACE    yes if the restart is in progress, and counts against the workload's limit

-o wide adds the times of the restart, the outcome and the end of the grant, and the container's number of restarts
before the grant.`

func (c *cli) explainRestart() *cobra.Command {
	request := &adminv1.ExplainRestartRequest{}
	cmd := &cobra.Command{
		Use:     "explain POD",
		Short:   "Explain why the containers of a pod restart or not",
		Long:    explainRestartHelp,
		Example: "  sondectl restarts explain web-0 -n shop\n  sondectl restarts explain web-0 -n shop -o json",
		Args:    cobra.ExactArgs(1),
	}
	output := printer.AddFormat(cmd, printer.Text, printer.Wide, printer.YAML, printer.JSON)
	c.addNamespace(cmd, &request.Namespace, "`NAMESPACE` of the pod; default the only namespace that has it")
	cmd.ValidArgsFunction = func(
		cmd *cobra.Command, args []string, prefix string,
	) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		pods := func(found *adminv1.ListRestartsResponse) (names []string) {
			for _, r := range found.GetRestarts() {
				names = append(names, r.GetPod())
			}
			return names
		}
		return c.completeRestarts(cmd.Context(), request.GetNamespace(), prefix, pods)
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
		return printer.Write(&c.out, output.Value, printer.Message{Message: answer}, func() {
			c.writeExplanation(answer, output.Value == printer.Wide)
		})
	}
	return cmd
}

// writeExplanation writes a table of facts, and one of grants.
func (c *cli) writeExplanation(a *adminv1.ExplainRestartResponse, wide bool) {
	facts := &printer.Facts{}
	facts.Add("pod", podText(a))
	facts.Add("agent", agentText(a))
	if text := holdText(a); text != "" {
		facts.Add("  holds", text)
	}
	w := a.GetWorkload()
	facts.Add("workload", w.GetName())
	facts.Add("  pods", fmt.Sprintf("%d desired, %d available", w.GetReplicas(), w.GetAvailable()))
	facts.Add("  may lose", fmt.Sprintf("%d at a time: %s", w.GetMaxUnavailable(), w.GetSource()))
	facts.Add("  in progress", strconv.FormatUint(uint64(w.GetInProgress()), 10))
	if w.GetUnhelpful() {
		facts.Add("  waits", "restarts have not helped: it waits for a change of its pod template, or for sondectl restarts release "+w.GetName())
	}
	for _, container := range a.GetContainers() {
		addContainer(facts, container, a.GetRound())
	}
	facts.Write(&c.out)
	writeGrants(&c.out, w, wide)
}

func podText(a *adminv1.ExplainRestartResponse) string {
	ready := "Ready"
	if !a.GetReady() {
		ready = "not Ready"
	}
	return fmt.Sprintf("%s/%s on node %s, %s", a.GetNamespace(), a.GetPod(), a.GetNode(), ready)
}

// agentText says whether the agent can hold failures back and gets grants.
func agentText(a *adminv1.ExplainRestartResponse) string {
	phase, since := describe.Phase(a.GetAgent()), describe.Since(a.GetAgent().GetSince())
	switch {
	case phase == "":
		return "unknown to the control plane: its probe results are unknown, and it gets no grants"
	case a.GetAgent().GetPhase() == adminv1.AgentState_CONNECTED && a.GetAgentOutdated():
		return fmt.Sprintf("connected for %s, but version %s is too old to hold failures back (feature restart-grants): it reports failures to the kubelet", since, a.GetAgentVersion())
	case a.GetAgent().GetPhase() == adminv1.AgentState_CONNECTED:
		return "connected for " + since
	case since == "":
		return phase + ": it has no session, so its probe results are unknown, and it gets no grants"
	}
	return fmt.Sprintf("%s for %s: it has no session, so its current probe results are unknown, and it gets no grants", phase, since)
}

// holdText describes the kubelet's response for a held failure, "" if unknown.
func holdText(a *adminv1.ExplainRestartResponse) string {
	texts := map[mesh.LivenessHold]string{
		mesh.HoldErrored: "failures as errored: the kubelet discards them",
		mesh.HoldWarning: "failures as warnings: the kubelet counts the probe as passed, with an event ProbeWarning that contains HELD",
	}
	text := texts[mesh.LivenessHold(a.GetHold())]
	if is := a.GetRound().GetHold(); text != "" && is != "" && is != a.GetHold() {
		text += fmt.Sprintf("; guardedLiveness.hold is %s: the agent's release is older, or another replica has not read the setting yet", is)
	}
	return text
}

func addContainer(f *printer.Facts, c *adminv1.GuardedContainer, round *adminv1.RestartRound) {
	f.Add("container", fmt.Sprintf("%s, restart count %d", c.GetName(), c.GetRestarts()))
	check := map[adminv1.GuardedContainer_Check]string{
		adminv1.GuardedContainer_PASSES: "passes", adminv1.GuardedContainer_FAILS: "fails",
	}[c.GetCheck()]
	switch {
	case check == "":
		check = "unknown: its agent has not reported it"
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

func writeGrants(out *printer.Output, w *adminv1.RestartWorkload, wide bool) {
	out.WriteByte('\n')
	if len(w.GetGrants()) == 0 {
		out.WriteString("no restarts of the workload were granted within the last hour\n")
		return
	}
	header := []string{"POD", "CONTAINER", "OUTCOME", "PLACE", "GRANTED"}
	if wide {
		header = append(header, "RESTARTED", "JUDGED", "ENDED", "RESTARTS")
	}
	rows := make([]printer.Row, 0, len(w.GetGrants()))
	for _, g := range w.GetGrants() {
		cells := []string{
			g.GetPod(), g.GetContainer(), outcomeText(g), placeText(g), agoText(g.GetGranted()),
			agoText(g.GetSpent()), agoText(g.GetJudged()), agoText(g.GetEnded()),
			strconv.FormatUint(uint64(g.GetRestarts()), 10),
		}
		rows = append(rows, printer.Row{Cells: cells[:len(header)]})
	}
	printer.WriteTable(out, header, rows)
	if n := w.GetLeftOut(); n > 0 {
		fmt.Fprintf(out, "and %d more: kubectl get restartgrants -n %s\n", n, namespaceOf(w.GetName()))
	}
}

// outcomeText returns the outcome of a grant in one word, and whether the grant was a dry run.
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

// namespaceOf returns the namespace in Kind/namespace/name.
func namespaceOf(workload string) string {
	_, rest, _ := strings.Cut(workload, "/")
	namespace, _, _ := strings.Cut(rest, "/")
	return printer.OneLine(namespace)
}
