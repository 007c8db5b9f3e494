package dpagent

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/serviceprobe"
)

// reporters is a serviceprobe.Reporter that passes each result on to several others.
type reporters []serviceprobe.Reporter

func (r reporters) Set(inbound netip.AddrPort, s serviceprobe.State) {
	for _, one := range r {
		one.Set(inbound, s)
	}
}

func (r reporters) Forget(inbound netip.AddrPort) {
	for _, one := range r {
		one.Forget(inbound)
	}
}

// setServiceProbes applies the control plane's probes of the applications. They stay in effect without a session, and
// for the next agent if this one dies.
func (a *Agent) setServiceProbes(m *agentv1.ServiceProbes) {
	probes, err := serviceProbes(m)
	if err != nil {
		a.logger.Error("invalid service probes from the control plane, keeping the previous ones", "err", err)
		return
	}
	a.storeTold(fileServiceProbes, m) // before probing: the next agent should use the same probes
	a.serviceProbes.Set(probes)
	a.setInboundsOf(m, probes)
}

func (a *Agent) setInboundsOf(m *agentv1.ServiceProbes, probes []serviceprobe.Probe) {
	if !m.GetNoOthers() {
		a.inbounds.Store(nil)
		return
	}
	served := []netip.AddrPort{}
	for i, p := range probes {
		if !m.GetProbes()[i].GetDeclaredNotReady() {
			served = append(served, p.Inbound)
		}
	}
	a.inbounds.Store(&served)
}

// serves returns an error if no inbound can take traffic, according to the Dataplane or the last check of its
// application. It works without the control plane.
func (a *Agent) serves() error {
	inbounds := a.inbounds.Load()
	if inbounds == nil {
		return nil
	}
	if len(*inbounds) == 0 {
		return errors.New("the Dataplane declares all its inbounds not ready")
	}
	var errs []error
	for _, at := range *inbounds {
		switch s, ok := a.readiness.Of(at); {
		case !ok:
			errs = append(errs, fmt.Errorf("inbound %s: its application has not been probed yet", at))
		case !s.Ready:
			errs = append(errs, fmt.Errorf("inbound %s: %s", at, s.Reason))
		default:
			return nil
		}
	}
	return errors.Join(errs...)
}

func serviceProbes(m *agentv1.ServiceProbes) ([]serviceprobe.Probe, error) {
	var probes []serviceprobe.Probe
	var errs []error
	for i, p := range m.GetProbes() {
		one, err := serviceProbe(fmt.Sprintf("probes[%d].", i), p)
		probes, errs = append(probes, one), append(errs, err)
	}
	return probes, errors.Join(errs...)
}

func serviceProbe(path string, m *agentv1.ServiceProbe) (serviceprobe.Probe, error) {
	var errs []error
	wrong := func(field, value, allowed string) {
		errs = append(errs, &mesh.FieldError{Field: path + field, Value: value, Allowed: allowed})
	}
	address := func(field, text string) netip.AddrPort {
		at, err := netip.ParseAddrPort(text)
		if err != nil {
			wrong(field, text, "must be ip:port")
		}
		return at
	}
	duration := func(field string, d *durationpb.Duration) time.Duration {
		if d.CheckValid() != nil || d.AsDuration() <= 0 {
			wrong(field, d.AsDuration().String(), "must be longer than 0")
		}
		return d.AsDuration()
	}
	threshold := func(field string, n uint32) uint32 {
		if n == 0 {
			wrong(field, strconv.Itoa(int(n)), "must be at least 1")
		}
		return n
	}
	p := serviceprobe.Probe{
		Inbound: address("inbound", m.GetInbound()), Application: address("application", m.GetApplication()),
		Period: duration("period", m.GetPeriod()), Timeout: duration("timeout", m.GetTimeout()),
		FailureThreshold: threshold("failure_threshold", m.GetFailureThreshold()),
		SuccessThreshold: threshold("success_threshold", m.GetSuccessThreshold()),
	}
	var known bool
	if p.Check, known = m.Check(int32(p.Application.Port())); !known {
		wrong("handler", "", "must be of a type that this agent supports")
	}
	return p, errors.Join(errs...)
}
