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
	// DefaultHangLimit is how long Envoy's main thread may be busy: a large update is slow, and a restart cuts all connections.
	DefaultHangLimit = time.Minute
	// stillLimit is how long it may not run at all while a question waits for it. An Envoy that is well wakes several times a second.
	stillLimit = 3 * time.Second
	// pathAlive is the cheapest answer of the admin interface, before Envoy is ready too.
	pathAlive = "/hot_restart_version"
	lookEvery = time.Second
	askEvery  = 10 * time.Second
	askAlive  = 500 * time.Millisecond
	// killTime is how long a process that was killed may take to end.
	killTime = 5 * time.Second
)

// alive is what is known of an Envoy that does not do what it should.
type alive struct {
	ended  time.Time // when Run has last seen it end, zero before and while it runs
	silent time.Time // when a question was asked that it has not answered, nor another one since; zero if it answers
}

// Alive returns an error if nothing that this process does helps: an Envoy that hangs was killed and has not ended, or it has ended and is not started
// again. It is no error that Envoy was not started yet, nor that it ends again and again.
func (e *Envoy) Alive(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.down != nil && !e.alive.ended.IsZero() && time.Since(e.alive.ended) > e.o.HangLimit:
		return fmt.Errorf("envoy ended %s ago, and was not started again: %w", time.Since(e.alive.ended).Round(time.Second), e.down)
	case e.down == nil && !e.alive.silent.IsZero() && time.Since(e.alive.silent) > e.o.HangLimit+killTime:
		return fmt.Errorf("envoy has not answered for %s, and does not end", time.Since(e.alive.silent).Round(time.Second))
	}
	return nil
}

// watch looks at a process again and again, and returns why it has to be killed, or nil once ctx ends. Envoy is asked rarely, which takes more than
// to look whether its main thread runs, unless that does not, or Envoy has not answered.
func (e *Envoy) watch(ctx context.Context, p Process) (why error) {
	var last Activity                // of the main thread
	var looked, ran, asked time.Time // ran: when it was last seen to have run since the look before
	var silent time.Time
	for range run.Ticks(ctx, lookEvery) {
		now := time.Now()
		if now.Sub(looked) > stillLimit { // this process did not run either: nothing is known of that time
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
			return fmt.Errorf("it has not run for %s: %w", still.Round(time.Second), err)
		case time.Since(silent) > e.o.HangLimit:
			return fmt.Errorf("it has not answered for %s: %w", time.Since(silent).Round(time.Second), err)
		}
	}
	return nil
}

// ask asks Envoy once, and returns since when it has not answered.
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

// Activity is what the kernel tells of a thread.
type Activity struct {
	// Busy says that it runs or wants to, waits for a disk, which no signal ends, or a debugger holds it.
	Busy bool
	// Switches is how often it was given a processor.
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
