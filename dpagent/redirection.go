package dpagent

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// readinessSilence is how long the kubelet, which asks each second and waits 3 s for an answer, must not have asked.
	readinessSilence = 5 * time.Second
	readinessLook    = time.Second
)

// redirectionLost is the class of a readiness that fails because the pod has lost its redirection.
const redirectionLost probe.Class = "RedirectionLost"

// readinessRequests notices when the kubelet's questions for readiness stop, although Envoy is ready: they come through the
// redirection of the pod, whose rules the agent may not read.
//
// It is told as an event, and is no check: the silence of a kubelet that is restarted looks the same, and a check that failed for it would
// have load balancers avoid all pods of the node. Nor would the kubelet read it: what it asks no longer comes here.
type readinessRequests struct {
	loop *heartbeat.Loop // told of each look; may be nil
	last atomic.Int64    // when the last one came, as UnixNano; 0 before the first
	lost bool            // it has been told
}

// through counts the requests to a handler.
func (r *readinessRequests) through(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.URL.Path == mesh.PathReady {
			r.last.Store(time.Now().UnixNano())
		}
		h.ServeHTTP(w, request)
	})
}

// watch looks again and again until ctx ends.
func (r *readinessRequests) watch(ctx context.Context, envoyReady func(context.Context) error, tell func(probe.Failure)) {
	for range run.Ticks(ctx, readinessLook) {
		r.loop.Begin()
		r.look(ctx, envoyReady, tell)
		r.loop.End()
	}
}

// look tells once of each time that the requests stop.
func (r *readinessRequests) look(ctx context.Context, envoyReady func(context.Context) error, tell func(probe.Failure)) {
	last := r.last.Load()
	silent := last != 0 && time.Since(time.Unix(0, last)) > readinessSilence
	switch {
	case !silent:
		r.lost = false
	case !r.lost && envoyReady(ctx) == nil:
		r.lost = true
		tell(probe.Failure{
			Container: mesh.ContainerSidecar, Probe: string(mesh.ProbeReadiness), Verdict: "failure", Class: redirectionLost,
			Reason: "Envoy is ready, and the kubelet has not asked it for 5 s: the kubelet is away, or the redirection of the pod's connections is gone",
		})
	}
}
