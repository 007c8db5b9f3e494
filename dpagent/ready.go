package dpagent

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/envoy"
	"github.com/sonde-mesh/sonde/health"
)

// errInboundsUnknown means that the control plane has not reported the state of the inbound listeners yet.
var errInboundsUnknown = errors.New(
	"waiting for the control plane to report that envoy has accepted the inbound listeners")

// errEndpointsUnknown means that the control plane has not reported yet whether other proxies know this proxy's
// endpoints.
var errEndpointsUnknown = errors.New("waiting for the control plane to report that other proxies know the endpoints")

// setEndpoints records the control plane's report on the endpoints; nil means that other proxies know that they are
// ready.
func (a *Agent) setEndpoints(err error) { a.endpointsErr.Store(&err) }

// errOutboundsUnknown is the state before the first report of the outbound listeners.
var errOutboundsUnknown = errors.New(
	"waiting for the control plane to report that envoy has accepted the outbound listeners")

// setOutbounds records the control plane's report on the outbound listeners; nil means that Envoy has accepted all of
// them.
func (a *Agent) setOutbounds(err error) { a.outboundsErr.Store(&err) }

// setInbounds records the control plane's report on the inbound listeners; nil means that Envoy has accepted all of
// them. The report stays in effect without a session, and for the next agent if this one dies.
func (a *Agent) setInbounds(err error) {
	before := *a.inboundsErr.Swap(&err)
	if !a.keepsEnvoy() || before == nil && err == nil || before != nil && err != nil && before.Error() == err.Error() {
		return
	}
	text := inboundsAccepted
	if err != nil {
		text = err.Error()
	}
	if err := a.dir.Write(fileInbounds, []byte(text)); err != nil {
		a.logger.Warn("failed to store the state of the inbounds", "err", err)
	}
}

const (
	// fileInbounds stores the control plane's report on the inbound listeners for an agent that resumes after this one.
	fileInbounds     = "inbounds"
	inboundsAccepted = "accepted"
)

// resumeInbounds loads the report that a previous agent stored.
func (a *Agent) resumeInbounds() error {
	text, err := a.dir.Read(fileInbounds)
	if err != nil {
		return err
	}
	var refused error
	if string(text) != inboundsAccepted {
		refused = errors.New(string(text))
	}
	a.inboundsErr.Store(&refused)
	return nil
}

// settleTime bounds how long Envoy's readiness request waits for an agent that has just started.
const settleTime = time.Second

// whenSettled delays a request until the agent knows whether it resumes a previous agent, whose pod is already ready.
func (a *Agent) whenSettled(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), settleTime)
		defer cancel()
		select {
		case <-a.settled:
		case <-ctx.Done():
		}
		h.ServeHTTP(w, r)
	})
}

// keepReady is how long a readiness result is reused. It is short, since the kubelet probes each second and a pod
// should become ready soon.
const keepReady = 200 * time.Millisecond

// CheckEnvoy is a readiness check that every agent has.
const CheckEnvoy = "envoy"

// CheckEndpoints is the check that warns while other proxies may not treat this proxy's endpoints as ready.
const CheckEndpoints = "endpoints"

// CheckOutbounds is the check that warns while Envoy has not accepted all listeners for outbound calls.
const CheckOutbounds = "outbounds"

// checkDrain is the readiness check that load balancers get as a separate reason.
const checkDrain = "drain"

func (a *Agent) addChecks(proxy *envoy.Envoy) {
	a.checks.Add(health.Livez, health.Check{Name: "envoy", Run: proxy.Alive})
	a.checks.Add(health.Livez, health.Check{Name: "service-probes", Run: a.serviceProbes.Alive})
	ready := func(name string, run func(context.Context) error) {
		a.checks.Add(health.Readyz, health.Check{Name: name, Run: run, Keep: keepReady})
	}
	ready("identity", func(context.Context) error {
		if why := a.joinErr.Load(); why != nil {
			return *why
		}
		return a.identity.Valid(time.Now())
	})
	ready(CheckEnvoy, proxy.Ready)
	ready("inbounds", func(context.Context) error { return *a.inboundsErr.Load() })
	// Only a warning: the proxy is ready, whatever its application's state. sonde-dp wait also waits for this check.
	a.checks.Add(health.Readyz, health.Check{
		Name: CheckEndpoints, Run: func(context.Context) error { return *a.endpointsErr.Load() }, Keep: keepReady,
		Informational: true,
	})
	// Also only a warning: callers of this proxy do not need its outbounds.
	a.checks.Add(health.Readyz, health.Check{
		Name: CheckOutbounds, Run: func(context.Context) error { return *a.outboundsErr.Load() }, Keep: keepReady,
		Informational: true,
	})
	ready("probes", a.perPort.Ready)
	ready("name", a.duplicates.refusal)
	a.checks.Add(health.Readyz, health.Check{Name: "duplicate", Run: a.duplicates.recent, Informational: true})
	// Only a warning, since this host's clock may be wrong, and other proxies then still accept the certificate.
	a.checks.Add(health.Readyz, health.Check{
		Name: "clock", Run: func(context.Context) error { return a.identity.CheckClock(time.Now()) }, Keep: keepReady,
		Informational: true,
	})
	ready(checkDrain, func(context.Context) error {
		select {
		case <-a.draining:
			return errors.New("this proxy is draining")
		default:
			return nil
		}
	})
}
