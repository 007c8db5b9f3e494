package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/dashboard"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
	"github.com/sonde-mesh/sonde/cmd/sondectl/watchdog"
	"github.com/sonde-mesh/sonde/internal/settings"
)

const statusHelp = `Print one line if all is well, otherwise the problems, the worst first: what is affected, since when, and what to do
next.

SEVERITY  critical  calls fail, or a mesh or the control plane is missing
          error     an object does not work, but others still serve
          warning   it works, but may stop working
          note      no known problem: shown with problems, otherwise counted in the line
OBJECT    as KIND/NAME, which other commands read; several objects with the same problem are one line
SINCE     for how long, for several objects the longest; empty if unknown

The output is the control plane's current knowledge. Separate lines name its gaps, such as a disconnected replica.

Exit code 0: all is well; 6: something is wrong; 3: the control plane cannot be reached, or is not ready; 1: it rejected
the call.`

func (c *cli) status() *cobra.Command {
	var of statusOf
	var short, watch bool
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show problems, since when they exist, and what to do next",
		Long:    statusHelp,
		Example: "  sondectl status\n  sondectl status --short\n  sondectl status --watch\n  sondectl status --mesh shop -o json",
		Args:    cobra.NoArgs,
	}
	output := printer.AddFormat(cmd, printer.Text, printer.YAML, printer.JSON)
	c.addMesh(cmd, &of.mesh, "only this `MESH`; default all")
	cmd.Flags().StringVarP(&of.namespace, "namespace", "n", "",
		"only proxies, services and pods of this `NAMESPACE`; default all")
	cmd.Flags().BoolVar(&short, "short", false, "print only the line with the verdict and the counts")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "keep running, and print the status with the time whenever it changes, until a signal")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if watch && output.Value != printer.Text {
			return settings.Usagef("--watch: must not be set with -o %s", output.Value)
		}
		if short && output.Value != printer.Text {
			return settings.Usagef("--short: must not be set with -o %s", output.Value)
		}
		if watch {
			w := &statusWatcher{
				read: func(ctx context.Context) (*status.Report, error) { return c.readStatus(ctx, of) },
				out:  c.stdout, colours: c.hasColours(), short: short,
			}
			if of == (statusOf{}) { // the control plane sends all or nothing
				w.follow = c.followStatus
			}
			return w.watch(cmd)
		}
		return c.writeStatus(cmd.Context(), of, output.Value, short)
	}
	return cmd
}

// dashboard returns sondectl dashboard.
func (c *cli) dashboard() *cobra.Command {
	return dashboard.Command(dashboard.Options{
		Call: c.callWithin, Clusters: c.watchedClusters(), Out: c.stdout, Terminal: c.terminal,
	})
}

// watchedClusters returns a function that opens the kubeconfig's cluster once, for its WatchedClusters.
func (c *cli) watchedClusters() func() (dashboard.Clusters, error) {
	var reader *watchdog.Reader
	return func() (dashboard.Clusters, error) {
		if direct := c.addressGiven(); direct != "" {
			return nil, fmt.Errorf("WatchedClusters are read with a kubeconfig only, and %s is set", c.placeOf(direct))
		}
		if reader == nil {
			in, err := c.kubernetes()
			if err != nil {
				return nil, err
			}
			if reader, err = watchdog.NewReader(in); err != nil {
				return nil, err //nolint:wrapcheck // it says what failed
			}
		}
		return reader, nil
	}
}

// statusOf selects what to look at. Empty fields select all.
type statusOf struct{ mesh, namespace string }

// readStatus asks the control plane for problems.
func (c *cli) readStatus(ctx context.Context, of statusOf) (*status.Report, error) {
	var facts *status.Facts
	err := c.call(ctx, func(ctx context.Context, api adminv1.AdminServiceClient) (err error) {
		facts, err = status.Read(ctx, api, of.mesh, of.namespace)
		return err
	})
	if err != nil {
		return nil, err
	}
	return status.Judge(facts), nil
}

// followFor is how long one connection is followed: the next one has a new token.
const followFor = 5 * time.Minute

// followStatus has the control plane send what changes.
func (c *cli) followStatus(ctx context.Context, take func(*status.Report) error) error {
	return c.callWithin(ctx, followFor+callTimeout, func(ctx context.Context, api adminv1.AdminServiceClient) error {
		stream, err := status.Watch(ctx, api)
		if err != nil {
			return err //nolint:wrapcheck // callWithin explains it
		}
		defer stream.Close()
		for start := time.Now(); time.Since(start) < followFor; {
			reading, err := stream.Next()
			if err == nil {
				err = reading.Err()
			}
			if err == nil {
				err = take(status.Judge(reading.Facts))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// writeStatus writes the problems. The error has the exit code.
func (c *cli) writeStatus(ctx context.Context, of statusOf, f printer.Format, short bool) error {
	report, err := c.readStatus(ctx, of)
	if err != nil {
		return err
	}
	if err := report.Write(&c.out, f, short); err != nil {
		return err
	}
	return report.Err()
}
