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

const healthHelp = `Show the results of /livez and /readyz of this replica of the control plane, with the reasons, which these pages show
only to clients on the same host.

GROUP   livez: should the control plane keep running; readyz: should it get traffic
NAME    name of the check; docs/guides/health.md explains each check
STATUS  ok, failed, or warning, which does not fail the group. The reason is on a separate line, and so is each change
        of a check that differs from its state at the start
AGE     age of the result, which is cached for a while
TOOK    how long the check took

Exit code 0: all checks pass; 6: a check has failed.`

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
	r := printer.Row{
		Cells: []string{c.GetGroup(), c.GetName(), healthWord(c.GetStatus()), describe.Since(c.GetAt()), took},
	}
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

// healthWord returns a status in lower case, "" if it is unspecified.
func healthWord(s adminv1.HealthCheck_Status) string {
	if s == adminv1.HealthCheck_STATUS_UNSPECIFIED {
		return ""
	}
	return strings.ToLower(s.String())
}

// unhealthy returns the failed checks.
func unhealthy(health *adminv1.Health) error {
	var failed []string
	for _, c := range health.GetChecks() {
		if c.GetStatus() == adminv1.HealthCheck_FAILED {
			failed = append(failed, c.GetGroup()+"/"+c.GetName())
		}
	}
	switch {
	case len(health.GetChecks()) == 0:
		return errors.New("the control plane returned no health checks")
	case len(failed) > 0:
		return &exit.Error{Code: exit.Unhealthy, Err: fmt.Errorf("failed: %s", strings.Join(failed, ", "))}
	default:
		return nil
	}
}
