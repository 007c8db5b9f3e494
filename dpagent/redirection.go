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
	// readinessSilence is how long readiness requests must be missing before they count as lost. The kubelet sends one
	// each second, with a timeout of 3 s.
	readinessSilence = 5 * time.Second
	readinessLook    = time.Second
)

// redirectionLost is the class of a readiness probe that fails because the pod has lost its redirection.
const redirectionLost probe.Class = "RedirectionLost"

// readinessRequests detects that the kubelet's readiness requests stop although Envoy is ready. They arrive through the
// pod's redirection, whose rules the agent may not read.
//
// It reports an event rather than fail a check: a restarting kubelet sends no requests either, and a failing check
// would make load balancers avoid all pods of the node. The kubelet would not see the check, since its requests no
// longer arrive.
type readinessRequests struct {
	loop *heartbeat.Loop // watches the loop; may be nil
	last atomic.Int64    // time of the last request, as UnixNano; 0 before the first
	lost bool            // already reported
}

// through records when readiness requests reach a handler.
func (r *readinessRequests) through(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.URL.Path == mesh.PathReady {
			r.last.Store(time.Now().UnixNano())
		}
		h.ServeHTTP(w, request)
	})
}

// watch checks periodically until ctx ends.
func (r *readinessRequests) watch(
	ctx context.Context, envoyReady func(context.Context) error, tell func(probe.Failure),
) {
	for range run.Ticks(ctx, readinessLook) {
		r.loop.Begin()
		r.look(ctx, envoyReady, tell)
		r.loop.End()
	}
}

// look reports a failure once each time that the requests stop.
func (r *readinessRequests) look(
	ctx context.Context, envoyReady func(context.Context) error, tell func(probe.Failure),
) {
	last := r.last.Load()
	silent := last != 0 && time.Since(time.Unix(0, last)) > readinessSilence
	switch {
	case !silent:
		r.lost = false
	case !r.lost && envoyReady(ctx) == nil:
		r.lost = true
		tell(probe.Failure{
			Container: mesh.ContainerSidecar, Probe: string(mesh.ProbeReadiness), Verdict: "failure", Class: redirectionLost,
			Reason: "Envoy is ready, but the kubelet has sent no readiness request for 5 s: the kubelet is down, or the redirection of the pod's connections is missing",
		})
	}
}
