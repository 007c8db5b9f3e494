package session

import (
	"context"
	"slices"
	"sync"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Report is one kind of what an agent reports to a control plane that takes it.
type Report struct {
	// Feature of the control planes that take it. Required.
	Feature string
	// Due is set when there is something to report. Required.
	Due run.Signal
	// Interval is the least time between two reports: the first change goes out at once. Default: none.
	Interval time.Duration
	// AtDrain ends the pause between two reports when the drain begins.
	AtDrain bool
	// Begin sets Due if a control plane that knows nothing of this agent has to be told something. Default: it is set by others.
	Begin func()
	// Message takes what is to be reported. Required.
	Message func() *agentv1.AgentMessage
}

// reporters has the reports that a control plane takes wait until they are due, each in a goroutine of its own.
type reporters struct {
	due   chan *Report
	drain <-chan struct{}
	group sync.WaitGroup
}

// begin begins to wait for the reports that a control plane with these features takes, until ctx ends.
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
