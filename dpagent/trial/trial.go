// Package trial finds out whether the kubelet of a node discards an Errored liveness probe, which guarded liveness
// requires.
package trial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// periods is how many consecutive periods the kubelet has to probe. The probe has a failureThreshold of 1.
	periods = 4
	// apart is the minimum time between requests of two periods, which are one second long.
	apart = 500 * time.Millisecond
)

// Errors of Run.
var (
	// ErrCounted means that the kubelet has ended the container after Errored answers.
	ErrCounted = errors.New(mesh.KubeletCountsErrored)
	// ErrNotAsked means that this program was ended, or its time was over, before the kubelet had probed often enough.
	ErrNotAsked = errors.New("the kubelet has not probed often enough")
	// ErrNotErrored means that the kubelet did not treat the answer as Errored, after which it probes again at once.
	ErrNotErrored = errors.New("the kubelet has not treated the answer as errored")
)

// Options of a trial. All are required.
type Options struct {
	// Probes has one guarded liveness probe. Nothing listens at its application's address.
	Probes probe.Options
	// Listener is the listener of the virtual port.
	Listener net.Listener
	// Within is how long the kubelet may take to probe often enough.
	Within time.Duration
}

// trial counts the kubelet's requests.
type trial struct {
	handler http.Handler
	enough  run.Signal // set when the kubelet has probed in enough periods

	mu    sync.Mutex
	last  time.Time
	asked []int // number of requests, by period
}

// Run answers the kubelet like an agent that holds a failure back, until the kubelet has probed in enough periods, ctx
// ends, or the time is over. It returns nil if the kubelet has discarded the answers.
func Run(ctx context.Context, o Options) error {
	o.Probes.Guarded = holdsAll{}
	h, err := probe.New(o.Probes)
	if err != nil {
		return err
	}
	t := &trial{handler: h, enough: run.NewSignal()}
	server := &http.Server{Handler: t, ReadHeaderTimeout: o.Within, ErrorLog: nil}
	served := make(chan error, 1)
	go func() { served <- server.Serve(o.Listener) }()
	defer func() { _ = server.Close() }()
	late := time.NewTimer(o.Within)
	defer late.Stop()
	select {
	case err := <-served:
		return fmt.Errorf("serve the probe: %w", err)
	case <-t.enough:
		return t.judge(false)
	case <-ctx.Done():
		return t.judge(true)
	case <-late.C:
		return t.judge(false)
	}
}

// holdsAll is a probe.Guarded that holds back all failures.
type holdsAll struct{}

// Passed implements probe.Guarded.
func (holdsAll) Passed(mesh.Probe) {}

// Failed implements probe.Guarded.
func (holdsAll) Failed(mesh.Probe, string) bool { return true }

// ServeHTTP implements http.Handler. It answers requests of other clients too, but does not count them.
func (t *trial) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.UserAgent(), mesh.KubeletAgent) && r.Header.Get(mesh.ProbeHeader) != "" {
		t.count(time.Now())
	}
	t.handler.ServeHTTP(w, r)
}

func (t *trial) count(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.asked) == 0 || now.Sub(t.last) > apart {
		t.asked = append(t.asked, 0)
	}
	t.last = now
	if t.asked[len(t.asked)-1]++; len(t.asked) == periods {
		t.enough.Set()
	}
}

// judge returns the result of the counted requests. ended means that the container was ended, so no more requests
// follow.
func (t *trial) judge(ended bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.asked)
	switch {
	case ended && n > 0 && n < periods:
		return fmt.Errorf("%w: the container was ended after %d errored probes", ErrCounted, n)
	case n < periods:
		return fmt.Errorf("%w: in %d periods, of at least %d", ErrNotAsked, n, periods)
	}
	for _, times := range t.asked[:periods-1] { // the last period may continue
		if times < 2 {
			return ErrNotErrored
		}
	}
	return nil
}
