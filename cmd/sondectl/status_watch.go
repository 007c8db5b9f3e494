package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
	"github.com/sonde-mesh/sonde/internal/run"
)

// watchPause is the minimum pause after a reading, as a multiple of the reading's duration without the wait for hanging
// agents.
const watchPause = 9

// statusWatcher writes a report whenever it changes. Ages alone are no change.
type statusWatcher struct {
	read    func(context.Context) (*status.Report, error)
	out     io.Writer
	colours bool
	short   bool

	shown []byte    // the last written report, nil before the first and while the control plane does not answer
	at    time.Time // of the last report
	lost  bool
}

// watch writes reports until a signal. The first reading must succeed.
func (w *statusWatcher) watch(cmd *cobra.Command) error {
	ctx := cmd.Context()
	for first := true; ; first = false {
		began := time.Now()
		report, err := w.read(ctx)
		var failed *exit.Error
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // a signal
		case err == nil:
			if w.lost {
				cmd.PrintErrln("sondectl: the control plane answers again")
			}
			w.lost, w.at = false, report.At
			if err := w.show(report); err != nil {
				return err
			}
		case first || !errors.As(err, &failed) || failed.Code != exit.Unreachable:
			return err
		case !w.lost:
			cmd.PrintErrf("sondectl: blind since %s: %s; asking again every %s\n", w.at.UTC().Format(time.RFC3339), printer.OneLine(err.Error()), watchEvery)
			w.lost, w.shown = true, nil
		}
		// The next reading sees the end of ctx.
		_ = run.Sleep(ctx, max(watchEvery, watchPause*(time.Since(began)-status.AskTakes)))
	}
}

// show writes a report with its time, unless it says the same as the last one.
func (w *statusWatcher) show(report *status.Report) error {
	now, err := json.Marshal(report.Problems)
	if err != nil {
		return fmt.Errorf("encode the problems: %w", err)
	}
	now = append(now, report.Summary...)
	if string(now) == string(w.shown) {
		return nil
	}
	w.shown = now
	var out printer.Output
	fmt.Fprintf(&out, "%s\n", report.At.Format(time.RFC3339))
	if err := report.Write(&out, printer.Text, w.short); err != nil {
		return err
	}
	out.WriteByte('\n')
	if err := out.Show(w.out, w.colours); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}
