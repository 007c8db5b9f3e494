package session

import "time"

// pace says when the next report of one kind is due: there is something to report, the control plane takes it, and the last report is
// long enough ago.
type pace struct {
	wake     <-chan struct{} // there is something to report
	interval time.Duration
	due      <-chan struct{} // wake, or nil while nothing may be reported
	over     chan<- *pace    // gets the pace when its pause is over, to be resumed
	pause    *time.Timer     // after a report
}

// newPace returns one that is paused, with no end. over has room for all paces that share it.
func newPace(wake <-chan struct{}, interval time.Duration, over chan<- *pace) *pace {
	p := &pace{wake: wake, interval: interval, over: over}
	p.pause = time.AfterFunc(interval, func() { p.over <- p })
	p.pause.Stop() // until there was a report
	return p
}

// resume lets the next report be due.
func (p *pace) resume() { p.due = p.wake }

// reported begins the pause after a report.
func (p *pace) reported() {
	p.due = nil
	p.pause.Reset(p.interval)
}

// hurry ends a pause.
func (p *pace) hurry() {
	if p.pause.Stop() {
		p.resume()
	}
}

func (p *pace) end() { p.pause.Stop() }
