package main

import (
	"context"

	"github.com/spf13/cobra"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
	"github.com/sonde-mesh/sonde/internal/settings"
)

const statusHelp = `Say in one line that all is well, or what is wrong, the worst first, with who is affected, since when, and what to do next.

SEVERITY  critical  calls fail, or a mesh or the control plane is not there
          error     something does not work, while others serve
          warning   it works, and may not go on to
          note      nothing is known to be wrong: shown beside problems, else counted in the line
OBJECT    as KIND/NAME, which other commands read; several objects with the same problem are one line
SINCE     for how long, of several objects the longest; none where nobody knows

It is what the control plane knows at this moment. What is missing in the answer, such as a replica that is not heard, is a line of its own.

Exit code 0: all is well; 6: something is wrong; 3: the control plane cannot be reached, or is not ready; 1: it has refused to answer.`

func (c *cli) status() *cobra.Command {
	var of statusOf
	var short bool
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Say whether anything is wrong, what, since when, and what to do next",
		Long:    statusHelp,
		Example: "  sondectl status\n  sondectl status --short\n  sondectl status --mesh shop -o json",
		Args:    cobra.NoArgs,
	}
	output := printer.AddFormat(cmd, printer.Text, printer.YAML, printer.JSON)
	c.addMesh(cmd, &of.mesh, "only this `MESH`; default all")
	cmd.Flags().StringVarP(&of.namespace, "namespace", "n", "", "only proxies, services and pods of this `NAMESPACE`; default all")
	cmd.Flags().BoolVar(&short, "short", false, "only the line with the verdict and the counts")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if short && output.Value != printer.Text {
			return settings.Usagef("--short: must not be with -o %s", output.Value)
		}
		return c.writeStatus(cmd.Context(), of, output.Value, short)
	}
	return cmd
}

// statusOf is what is looked at. Empty fields narrow nothing.
type statusOf struct{ mesh, namespace string }

// writeStatus writes what is wrong. The error has the exit code.
func (c *cli) writeStatus(ctx context.Context, of statusOf, f printer.Format, short bool) error {
	var facts *status.Facts
	err := c.call(ctx, func(ctx context.Context, api adminv1.AdminServiceClient) (err error) {
		facts, err = status.Read(ctx, api, of.mesh, of.namespace)
		return err
	})
	if err != nil {
		return err
	}
	report := status.Judge(facts)
	if err := report.Write(&c.out, f, short); err != nil {
		return err
	}
	return report.Err()
}
