package session

import (
	"sync"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Failures collects failed checks until they are reported: equal failures are one entry with a count. It is safe for
// concurrent use.
type Failures struct {
	wake run.Signal // set when a report is due

	mu      sync.Mutex
	pending map[failureKey]*agentv1.ProbeFailure
}

type failureKey struct {
	container, probe, verdict string
	class                     probe.Class
}

// NewFailures returns an empty Failures.
func NewFailures() *Failures {
	return &Failures{wake: run.NewSignal(), pending: map[failureKey]*agentv1.ProbeFailure{}}
}

// Report returns the report of failed checks, sent at most once in five seconds.
func (f *Failures) Report() Report {
	return Report{Feature: agentv1.FeatureProbeFailures, Due: f.wake, Interval: 5 * time.Second,
		Message: func() *agentv1.AgentMessage {
			return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_ProbeFailures{ProbeFailures: f.take()}}
		}}
}

// Add adds a failed check. It returns at once.
func (f *Failures) Add(failed probe.Failure) {
	key := failureKey{failed.Container, failed.Probe, failed.Verdict, failed.Class}
	f.mu.Lock()
	p := f.pending[key]
	if p == nil {
		p = &agentv1.ProbeFailure{Container: key.container, Probe: key.probe, Verdict: key.verdict, Class: string(key.class)}
		f.pending[key] = p
	}
	p.Reason = failed.Reason
	p.Count++
	f.mu.Unlock()
	f.wake.Set()
}

// take returns the next report.
func (f *Failures) take() *agentv1.ProbeFailures {
	f.mu.Lock()
	defer f.mu.Unlock()
	report := &agentv1.ProbeFailures{}
	for key, p := range f.pending {
		if len(report.GetFailures()) == agentv1.MaxReported { // the rest follows in the next report
			f.wake.Set()
			break
		}
		report.Failures = append(report.Failures, p)
		delete(f.pending, key)
	}
	return report
}
