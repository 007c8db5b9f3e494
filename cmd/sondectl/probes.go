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
	cmd := &cobra.Command{Use: "probes", Short: "Look at the probes of pods"}
	cmd.AddCommand(c.explainProbes())
	return cmd
}

func (c *cli) explainProbes() *cobra.Command {
	var flags manifest.InjectFlags
	cmd := &cobra.Command{
		Use:   "explain -f FILE|DIR|-",
		Short: "Show what becomes of each probe and hook of a pod in the mesh, without any server",
		Long: `Show a table of the probes and hooks of each pod in a file: what the user wrote, what the kubelet will ask, what the
agent will do then, or why a probe is left as it is. The kinds and flags are those of sondectl inject. For a pod that has
been injected, the table shows what is in its probe table.

WRITTEN   what the user wrote
KUBELET   what the kubelet asks, and how long it waits for an answer
AGENT     what the agent asks the application then, and how long it waits for that; hooks have no limit. In the per-port mode
          the kernel passes TCP probes on. A failure of a liveness probe that is guarded waits until a restart is granted`,
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
		fmt.Fprintf(&c.out, "%s: no probes and no hooks\n", printer.OneLine(p.Place))
		return nil
	case port == 0:
		fmt.Fprintf(&c.out, "%s: no virtual port\n", printer.OneLine(p.Place))
	default:
		fmt.Fprintf(&c.out, "%s: virtual port %d\n", printer.OneLine(p.Place), port)
	}
	var rows []printer.Row
	for _, d := range decisions {
		rows = append(rows, decisionRow(d, port))
	}
	printer.WriteTable(&c.out, []string{"CONTAINER", "PROBE", "WRITTEN", "KUBELET", "AGENT"}, rows)
	return nil
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
	if d.Probe == nil {
		return printer.Row{Cells: append(cells, "as written", "nothing"), Notes: notes}
	}
	return printer.Row{Cells: append(cells, d.Asks(port), agentAction(*d.Probe)), Notes: notes}
}

// agentAction returns in one line what the agent asks the application.
func agentAction(p mesh.Probe) string {
	if p.Redirected() {
		return fmt.Sprintf("nothing, the kernel redirects to :%d", p.Port())
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
