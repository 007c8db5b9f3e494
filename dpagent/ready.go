package dpagent

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/envoy"
	"github.com/sonde-mesh/sonde/health"
)

// errInboundsUnknown says that the control plane has not said yet what becomes of the inbound listeners.
var errInboundsUnknown = errors.New("the control plane has not said yet that envoy has accepted the inbound listeners")

// errEndpointsUnknown says that the control plane has not said yet what other proxies know of this one's endpoints.
var errEndpointsUnknown = errors.New("the control plane has not said yet that other proxies know of the endpoints")

// setEndpoints records what the control plane says of the endpoints; nil if other proxies know that they are ready.
func (a *Agent) setEndpoints(err error) { a.endpointsErr.Store(&err) }

// errOutboundsUnknown is the state before the first report of the outbound listeners.
var errOutboundsUnknown = errors.New("the control plane has not said yet that envoy has accepted the outbound listeners")

// setOutbounds records the state of the outbound listeners; nil if Envoy has accepted all.
func (a *Agent) setOutbounds(err error) { a.outboundsErr.Store(&err) }

// setInbounds records what the control plane says of the inbounds; nil if Envoy has accepted all. It holds while there is no
// session, and for the next agent if this one dies.
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
		a.logger.Warn("state of the inbounds not stored", "err", err)
	}
}

const (
	// fileInbounds has what the control plane has said of the inbounds, for an agent that goes on where this one has died.
	fileInbounds     = "inbounds"
	inboundsAccepted = "accepted"
)

// resumeInbounds takes what the control plane has said to an agent that has died.
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

// settleTime is how long Envoy's question whether the agent is ready waits for an agent that has just started.
const settleTime = time.Second

// whenSettled answers when the agent knows whether it goes on where another one has died: that one's pod is ready.
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

// keepReady is for how long a result of readiness is good: the kubelet asks each second, and a pod that becomes ready is waited for.
const keepReady = 200 * time.Millisecond

// CheckEnvoy is the check of readiness that every agent has.
const CheckEnvoy = "envoy"

// CheckEndpoints is the check that warns while other proxies may not know that the endpoints of this one are ready.
const CheckEndpoints = "endpoints"

// CheckOutbounds is the check that warns while Envoy has not accepted all listeners at which the application calls others.
const CheckOutbounds = "outbounds"

// checkDrain is the check of readiness that has a reason of its own for load balancers.
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
	// A warning alone: the proxy is ready, whatever its application is. sonde-dp wait waits for this, too.
	a.checks.Add(health.Readyz, health.Check{
		Name: CheckEndpoints, Run: func(context.Context) error { return *a.endpointsErr.Load() }, Keep: keepReady, Informational: true,
	})
	// A warning, too: callers of this proxy do not need its outbounds.
	a.checks.Add(health.Readyz, health.Check{
		Name: CheckOutbounds, Run: func(context.Context) error { return *a.outboundsErr.Load() }, Keep: keepReady, Informational: true,
	})
	ready("probes", a.perPort.Ready)
	ready("name", a.duplicates.refusal)
	a.checks.Add(health.Readyz, health.Check{Name: "duplicate", Run: a.duplicates.recent, Informational: true})
	// A warning, since this clock may be wrong: others use the certificate then.
	a.checks.Add(health.Readyz, health.Check{
		Name: "clock", Run: func(context.Context) error { return a.identity.CheckClock(time.Now()) }, Keep: keepReady, Informational: true,
	})
	ready(checkDrain, func(context.Context) error {
		select {
		case <-a.draining:
			return errors.New("this proxy drains")
		default:
			return nil
		}
	})
}
