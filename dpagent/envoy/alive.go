package envoy

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// DefaultHangLimit is how long Envoy's main thread may be busy. It is long, since a large update is slow, and a
	// restart breaks all connections.
	DefaultHangLimit = time.Minute
	// stillLimit is how long the main thread may not run at all while a request waits for it. The main thread of a healthy
	// Envoy wakes several times a second.
	stillLimit = 3 * time.Second
	// pathAlive is the cheapest request to the admin interface. Envoy answers it even before it is ready.
	pathAlive = "/hot_restart_version"
	lookEvery = time.Second
	askEvery  = 10 * time.Second
	askAlive  = 500 * time.Millisecond
	// killTime is how long a process may take to end after SIGKILL.
	killTime = 5 * time.Second
)

// alive records since when Envoy has been down or unresponsive.
type alive struct {
	ended  time.Time // when Envoy last ended; zero before the first end, and while Envoy runs
	silent time.Time // when the first unanswered request was sent; zero if Envoy answers
}

// Alive returns an error if only a restart of the agent can help: a hanging Envoy was killed but has not ended, or
// Envoy has ended and was not started again. An Envoy that was never started, or that crashes repeatedly, is no error.
func (e *Envoy) Alive(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.down != nil && !e.alive.ended.IsZero() && time.Since(e.alive.ended) > e.o.HangLimit:
		return fmt.Errorf("envoy ended %s ago and was not started again: %w",
			time.Since(e.alive.ended).Round(time.Second), e.down)
	case e.down == nil && !e.alive.silent.IsZero() && time.Since(e.alive.silent) > e.o.HangLimit+killTime:
		return fmt.Errorf("envoy has not answered for %s and cannot be killed", time.Since(e.alive.silent).Round(time.Second))
	}
	return nil
}

// watch checks a process until it has to be killed, and returns the reason; it returns nil once ctx ends. It checks
// often whether the main thread runs, which is cheap. It sends Envoy a request rarely, unless the thread does not run
// or the last request was not answered.
func (e *Envoy) watch(ctx context.Context, p Process) (why error) {
	var last Activity                // of the main thread
	var looked, ran, asked time.Time // ran: the last check that found that the thread had run
	var silent time.Time
	for range run.Ticks(ctx, lookEvery) {
		now := time.Now()
		if now.Sub(looked) > stillLimit { // this process did not run either, so the state since then is unknown
			e.setSilent(time.Time{})
			ran = now
		}
		looked = now
		if a, known := p.Activity(); !known || a.Busy || a != last {
			last, ran = a, now
		}
		still := now.Sub(ran)
		if still < stillLimit && silent.IsZero() && now.Sub(asked) < askEvery {
			continue
		}
		var err error
		asked = now
		silent, err = e.ask(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
		case still >= stillLimit:
			return fmt.Errorf("main thread has not run for %s: %w", still.Round(time.Second), err)
		case time.Since(silent) > e.o.HangLimit:
			return fmt.Errorf("no answer for %s: %w", time.Since(silent).Round(time.Second), err)
		}
	}
	return nil
}

// ask sends Envoy one request, and returns since when Envoy has not answered.
func (e *Envoy) ask(ctx context.Context) (silent time.Time, err error) {
	now := time.Now()
	ctx, cancel := context.WithTimeout(ctx, askAlive)
	defer cancel()
	_, err = fetch(ctx, e.client, http.MethodGet, pathAlive)
	if err == nil {
		e.setEnded(nil)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err == nil:
		e.alive.silent = time.Time{}
	case e.alive.silent.IsZero():
		e.alive.silent = now
	}
	return e.alive.silent, err
}

func (e *Envoy) setSilent(since time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.alive.silent = since
}

// Activity is the kernel's report on a thread.
type Activity struct {
	// Busy means that the thread runs or can run, waits for a disk (which no signal interrupts), or is stopped by a
	// debugger.
	Busy bool
	// Switches changes each time that the thread gets a processor.
	Switches string
}

// activityOf returns the activity of the main thread of a process: proc(5), /proc/PID/task/TID/status.
func activityOf(pid int) (now Activity, known bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/status", pid, pid))
	if err != nil {
		return Activity{}, false
	}
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":"))
		value = bytes.TrimSpace(value)
		switch string(name) {
		case "State":
			known = len(value) > 0
			now.Busy = known && bytes.IndexByte([]byte("RDt"), value[0]) >= 0
		case "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches":
			now.Switches += string(value) + " "
		}
	}
	return now, known && now.Switches != ""
}
