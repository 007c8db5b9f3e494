package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/manifest"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/webhook"
)

func (c *cli) probes() *cobra.Command {
	cmd := &cobra.Command{Use: "probes", Short: "Show the probes of pods"}
	cmd.AddCommand(c.explainProbes())
	return cmd
}

func (c *cli) explainProbes() *cobra.Command {
	var flags manifest.InjectFlags
	cmd := &cobra.Command{
		Use:   "explain -f FILE|DIR|-",
		Short: "Show how Sonde rewrites each probe and hook of a pod, without any server",
		Long: `Show the probes and hooks of each pod in a file: the original, the kubelet's request, and the agent's action, or why a
probe is not rewritten. Kinds and flags are the same as in sondectl inject. For an injected pod, the output shows its
probe table.

WRITTEN   the original
kubelet:  the kubelet's request, and its timeout
agent:    what the agent then requests from the application, and its timeout; hooks have no limit. In the per-port mode
          the kernel passes TCP probes on. A failure of a guarded liveness probe waits until a restart is granted`,
		Example: `  sondectl probes explain -f web.yaml
  kubectl get pod web-1 -o yaml | sondectl probes explain -f -`,
		Args: manifest.NoOtherFiles,
	}
	flags.Add(cmd, manifest.ModeFlag, manifest.ModeUsage)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		all, o, err := flags.Read(cmd)
		if err != nil {
			return err
		}
		var errs []error
		found := 0
		for _, m := range all {
			if m.JSON == nil {
				continue
			}
			_, pods, err := manifest.FindPods(m)
			if err != nil {
				errs = append(errs, err)
			}
			found += len(pods)
			for _, p := range pods {
				if err := c.explainPod(p, o); err != nil {
					errs = append(errs, manifest.WithPlace(p.Place, err))
				}
			}
		}
		if found == 0 && len(errs) == 0 {
			return fmt.Errorf("%s: no pod found", flags.Files.String())
		}
		return manifest.ReportErrors(cmd, flags.Files.String(), errs)
	}
	return cmd
}

// explainPod writes the table of one pod.
func (c *cli) explainPod(p manifest.Pod, o webhook.Options) error {
	decisions, port, err := webhook.ExplainJSON(p.JSON, o)
	if err != nil {
		return err
	}
	if c.out.Len() > 0 {
		c.out.WriteByte('\n')
	}
	switch {
	case len(decisions) == 0:
		fmt.Fprintf(&c.out, "%s: no probes or hooks\n", printer.OneLine(p.Place))
		return nil
	case port == 0:
		fmt.Fprintf(&c.out, "%s: no virtual port\n", printer.OneLine(p.Place))
	default:
		fmt.Fprintf(&c.out, "%s: virtual port %d\n", printer.OneLine(p.Place), port)
	}
	writeDecisions(&c.out, decisions, port)
	return nil
}

func writeDecisions(out *printer.Output, decisions []webhook.Decision, port int32) {
	rows := make([]printer.Row, 0, len(decisions))
	for _, d := range decisions {
		rows = append(rows, decisionRow(d, port))
	}
	printer.WriteTable(out, []string{"CONTAINER", "PROBE", "WRITTEN"}, rows)
}

func decisionRow(d webhook.Decision, port int32) printer.Row {
	cells := []string{d.Container, string(d.Type), d.Written}
	var notes []string
	switch {
	case d.Unguarded != "":
		notes = []string{"not guarded: " + d.Unguarded}
	case d.Probe == nil:
		notes = []string{d.Why}
	}
	kubelet, agent := "as written", "nothing"
	if d.Probe != nil {
		kubelet, agent = d.Asks(port), agentAction(*d.Probe)
	}
	return printer.Row{Cells: cells, Notes: append([]string{"kubelet: " + kubelet, "agent:   " + agent}, notes...)}
}

// agentAction describes the agent's request to the application in one line.
func agentAction(p mesh.Probe) string {
	if p.Redirected() {
		return fmt.Sprintf("none, the kernel redirects to :%d", p.Port())
	}
	asks := p.Request(p.Port())
	if p.Type.IsHook() {
		return asks
	}
	action := fmt.Sprintf("%s, %d s", asks, p.TimeoutSeconds)
	if p.Guarded {
		action += fmt.Sprintf(", %d failures, guarded", p.FailureThreshold)
	}
	return action
}
