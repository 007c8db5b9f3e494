package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
	"github.com/sonde-mesh/sonde/internal/run"
)

// watchPause is the minimum pause after a reading, as a multiple of the reading's duration without the wait for hanging
// agents.
const watchPause = 9

const (
	// refusedPause is the average pause after the control plane has refused another viewer.
	refusedPause = 30 * time.Second
	// followAgain is how long a control plane without the call Watch is polled, before it is tried again.
	followAgain = 5 * time.Minute
)

// statusWatcher writes a report whenever it changes. Ages alone are no change.
type statusWatcher struct {
	read func(context.Context) (*status.Report, error)
	// follow passes on each report until it cannot or must connect again. Nil: only read is used.
	follow  followStatus
	polls   time.Time // until when it is not used
	out     io.Writer
	colours bool
	short   bool

	shown []byte    // the last written report, nil before the first and while the control plane does not answer
	at    time.Time // of the last report
	lost  bool
}

// followStatus passes each report to take, and returns its error.
type followStatus func(ctx context.Context, take func(*status.Report) error) error

// watch writes reports until a signal. The first reading must succeed.
func (w *statusWatcher) watch(cmd *cobra.Command) error {
	ctx := cmd.Context()
	take := func(report *status.Report) error {
		if w.lost {
			cmd.PrintErrln("sondectl: the control plane answers again")
		}
		w.lost, w.at = false, report.At
		return w.show(report)
	}
	for first := true; ; first = false {
		began, polls := time.Now(), first || !w.follows()
		var err error
		if polls {
			var report *status.Report
			if report, err = w.read(ctx); err == nil {
				err = take(report)
			}
		} else {
			err = w.follow(ctx, take)
		}
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // a signal
		case err == nil:
		case grpcstatus.Code(err) == codes.Unimplemented && !polls: // a control plane of an earlier release
			w.polls = time.Now().Add(followAgain)
		case first || !temporary(err):
			return err
		case !w.lost:
			every := watchEvery
			if grpcstatus.Code(err) == codes.ResourceExhausted {
				every = refusedPause
			}
			cmd.PrintErrf("sondectl: blind since %s: %s; asking again every %s\n", w.at.UTC().Format(time.RFC3339),
				printer.OneLine(err.Error()), every)
			w.lost, w.shown = true, nil
		}
		_ = run.Sleep(ctx, w.pause(polls, time.Since(began), err)) // the next reading sees the end of ctx
	}
}

// follows reports whether the next report comes from follow.
func (w *statusWatcher) follows() bool { return w.follow != nil && !time.Now().Before(w.polls) }

// pause returns how long to wait after a poll or the end of follow, which took a time.
func (w *statusWatcher) pause(polled bool, took time.Duration, err error) time.Duration {
	switch {
	case grpcstatus.Code(err) == codes.ResourceExhausted:
		return refusedPause*3/4 + rand.N(refusedPause/2) //nolint:gosec // jitter, not a secret
	case polled && !w.follows():
		return max(watchEvery, watchPause*(took-status.AskTakes))
	}
	return watchEvery
}

// temporary reports whether an error is temporary, so that a retry may help.
func temporary(err error) bool {
	var failed *exit.Error
	switch grpcstatus.Code(err) {
	case codes.ResourceExhausted, codes.Aborted: // too many watch, or this one has not read
		return true
	}
	return errors.As(err, &failed) && failed.Code == exit.Unreachable
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
