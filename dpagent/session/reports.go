package session

import (
	"context"
	"slices"
	"sync"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Report is one kind of report, for control planes that support it.
type Report struct {
	// Feature identifies the control planes that support this report. Required.
	Feature string
	// Due is set when a report is due. Required.
	Due run.Signal
	// Interval is the minimum time between two reports. The first change is reported at once. Default: none.
	Interval time.Duration
	// AtDrain ends the pause between two reports when the drain begins.
	AtDrain bool
	// Begin is called when a session begins. It makes a report due if a control plane without state of this agent needs
	// it. Default: other code sets Due.
	Begin func()
	// Message returns the next report. Required.
	Message func() *agentv1.AgentMessage
}

// reporters wait for due reports, each in its own goroutine.
type reporters struct {
	due   chan *Report
	drain <-chan struct{}
	group sync.WaitGroup
}

// begin starts to wait for the reports that a control plane with these features supports, until ctx ends.
func (r *reporters) begin(ctx context.Context, reports []Report, features []string) {
	for i := range reports {
		report := &reports[i]
		if !slices.Contains(features, report.Feature) {
			continue
		}
		if report.Begin != nil {
			report.Begin()
		}
		r.group.Go(func() { r.wait(ctx, report) })
	}
}

// wait passes on a report whenever it is due.
func (r *reporters) wait(ctx context.Context, report *Report) {
	var drain <-chan struct{}
	if report.AtDrain {
		drain = r.drain
	}
	for {
		select {
		case <-report.Due:
		case <-ctx.Done():
			return
		}
		select {
		case r.due <- report:
		case <-ctx.Done():
			report.Due.Set() // the next session reports it
			return
		}
		pause := time.NewTimer(report.Interval)
		select {
		case <-pause.C:
		case <-drain:
			drain = nil
		case <-ctx.Done():
		}
		pause.Stop()
	}
}
