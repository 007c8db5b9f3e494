package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

const healthHelp = `Show what /livez and /readyz of this replica of the control plane say, with the reasons, which those pages tell only on
its own host.

GROUP   livez: may the control plane go on; readyz: may it get traffic
NAME    of the check; the guide docs/guides/health.md explains each
STATUS  ok, failed, or warning, for which the group does not fail. The reason is on a line of its own, and so is each change of a check
        that is not what it was at the start
AGE     of the result: each is kept for a while
TOOK    how long the check took

Exit code 0: all pass; 6: one has failed.`

func (c *cli) health() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "health",
		Short:   "Show the health checks of the control plane",
		Long:    healthHelp,
		Example: "  sondectl health\n  sondectl health -o json",
		Args:    cobra.NoArgs,
	}
	output := printer.AddFormat(cmd, printer.Table, printer.YAML, printer.JSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		health, err := ask(cmd.Context(), c, adminv1.AdminServiceClient.GetHealth, &adminv1.GetHealthRequest{})
		if err != nil {
			return err
		}
		found, err := newListing("GROUP NAME STATUS AGE TOOK", health.GetChecks(), showMessage(healthRow))
		if err == nil {
			err = found.write(&c.out, output.Value)
		}
		if err != nil {
			return err
		}
		return unhealthy(health)
	}
	return cmd
}

func healthRow(c *adminv1.HealthCheck) printer.Row {
	took := ""
	if c.GetTook() != nil {
		took = c.GetTook().AsDuration().Round(time.Microsecond).String()
	}
	r := printer.Row{Cells: []string{c.GetGroup(), c.GetName(), healthWord(c.GetStatus()), describe.Since(c.GetAt()), took}}
	if c.GetReason() != "" {
		r.Notes = append(r.Notes, c.GetReason())
	}
	if changes := c.GetChanges(); len(changes) > 1 {
		for _, change := range changes {
			note := change.GetAt().AsTime().Format(time.RFC3339) + " " + healthWord(change.GetStatus())
			if change.GetReason() != "" {
				note += ": " + change.GetReason()
			}
			r.Notes = append(r.Notes, note)
		}
	}
	return r
}

// healthWord returns a status as one word in lower case, "" if the control plane does not say it.
func healthWord(s adminv1.HealthCheck_Status) string {
	if s == adminv1.HealthCheck_STATUS_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(s.String())
}

// unhealthy returns which checks have failed.
func unhealthy(health *adminv1.Health) error {
	var failed []string
	for _, c := range health.GetChecks() {
		if c.GetStatus() == adminv1.HealthCheck_FAILED {
			failed = append(failed, c.GetGroup()+"/"+c.GetName())
		}
	}
	switch {
	case len(health.GetChecks()) == 0:
		return errors.New("the control plane has no health checks")
	case len(failed) > 0:
		return &exit.Error{Code: exit.Unhealthy, Err: fmt.Errorf("failed: %s", strings.Join(failed, ", "))}
	default:
		return nil
	}
}
