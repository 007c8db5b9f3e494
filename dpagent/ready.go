package dpagent

import (
	"context"
	"errors"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/envoy"
)

// errInboundsUnknown says that the control plane has not said yet what becomes of the inbound listeners.
var errInboundsUnknown = errors.New("the control plane has not said yet that envoy has accepted the inbound listeners")

// setInbounds records what the control plane says of the inbounds; nil if Envoy has accepted all. It holds while there is no
// session.
func (a *Agent) setInbounds(err error) { a.inboundsErr.Store(&err) }

func (a *Agent) addChecks(proxy *envoy.Envoy) {
	a.ready.Add("identity", func(context.Context) error {
		if why := a.joinErr.Load(); why != nil {
			return *why
		}
		return a.identity.Valid(time.Now())
	})
	a.ready.Add("envoy", proxy.Ready)
	a.ready.Add("inbounds", func(context.Context) error { return *a.inboundsErr.Load() })
	a.ready.Add("drain", func(context.Context) error {
		select {
		case <-a.draining:
			return errors.New("this proxy drains")
		default:
			return nil
		}
	})
}
