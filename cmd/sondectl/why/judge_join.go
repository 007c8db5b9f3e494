package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/internal/podcause"
)

// argControlPlane is the prefix of the sidecar's argument with the control plane's address.
const argControlPlane = "--cp-address="

// inboundListeners is the prefix of inbound listeners' names (docs/naming.md).
const inboundListeners = "inbound:"

// controlPlane names the source of facts about proxies.
const controlPlane = "control plane"

// joining checks that the agent has joined and is connected.
func joining(f *Facts, _ []Finding) []Finding {
	c, ok := f.sidecar()
	if !ok || c.status == nil || c.status.State.Running == nil {
		return nil // an earlier stage has found the reason
	}
	started := c.status.State.Running.StartedAt.Time
	event := f.eventThat(func(e *Event) bool {
		return e.Part == mesh.ContainerSidecar && (e.Reason == podcause.JoinRefused || e.Reason == podcause.JoinWaiting)
	})
	if f.Plane == nil {
		if event == nil || c.status.Ready {
			return nil
		}
		return []Finding{{
			Cause: Cause(event.Reason), Keeps: FromReady, Text: event.Note, Since: at(started),
			Evidence: []Evidence{ofEvent(event)},
		}}
	}
	if since := expired(f.Plane.Proxy, f.Now); since != nil {
		return []Finding{{
			Cause: "CertificateExpired", Keeps: FromNew, Text: "its certificate has expired, and callers in the mesh reject it", Since: since, Do: logsOf(f, c.Name),
			Evidence: []Evidence{{Of: controlPlane, Says: "its certificate has expired", At: since}},
		}}
	}
	if r := uncounted(f, c, event); r != nil {
		return r
	}
	return phase(f, c, event)
}

// uncounted returns the finding for a pod that exceeds its namespace's share of the control plane's memory, nil for
// other pods. asks is the event of its agent.
func uncounted(f *Facts, c container, asks *Event) []Finding {
	p, told := f.Plane.Proxy, f.event(podcause.BeyondBounds, "")
	says := p.GetAgentState().GetRefusal()
	if says == "" && told != nil {
		says = told.Note
	}
	i := strings.Index(says, podcause.NotCounted)
	if p.GetKnown() || i < 0 {
		return nil
	}
	r := Finding{
		Cause: podcause.BeyondBounds, Keeps: FromReady, Text: "it " + says[i:], Since: at(timeOf(p.GetAgentState().GetSince())),
		Do: "Delete pods of the namespace that are not needed, or give the control plane more memory (docs/kubernetes.md#bounds)",
	}
	if c.status.Ready {
		r.Keeps = FromTraffic
	}
	why := cmp.Or(p.GetAgentState().GetRefusal(), "no Dataplane of that name")
	r.Evidence = withEvents([]Evidence{{Of: controlPlane, Says: why, At: r.Since}}, told, asks)
	return []Finding{r}
}

// phase judges a running agent by its state in the control plane. event reports that its join was rejected; it may be
// nil.
func phase(f *Facts, c container, event *Event) []Finding {
	p, started := f.Plane.Proxy, c.status.State.Running.StartedAt.Time
	state := p.GetAgentState()
	r := Finding{Keeps: FromReady, Since: at(started)}
	if state.GetSince() != nil {
		r.Since = at(state.GetSince().AsTime())
	}
	notKnown := cmp.Or(f.Plane.Unknown, "no Dataplane of that name")
	known := func(says string) []Evidence {
		return withEvents([]Evidence{{Of: controlPlane, Says: says, At: r.Since}}, event)
	}
	switch {
	case state.GetRefusal() != "":
		r.Cause, r.Text = podcause.JoinWaiting, podcause.Waits(state.GetRefusal())
		if event != nil && strings.HasSuffix(event.Note, state.GetRefusal()) {
			r.Cause, r.Text = Cause(event.Reason), event.Note
		}
		r.Evidence = known("its agent tries to join, and is rejected: " + state.GetRefusal())
	case state.GetPhase() == adminv1.AgentState_NEVER_JOINED && event != nil:
		r.Cause, r.Text, r.Evidence = Cause(event.Reason), event.Note, known("it has never joined")
	case !p.GetKnown() && event != nil && !c.status.Ready:
		r.Cause, r.Text, r.Evidence = Cause(event.Reason), event.Note, known(notKnown)
	case state.GetPhase() == adminv1.AgentState_NEVER_JOINED:
		r.Cause = "NeverJoined"
		r.Text = "its agent runs, but has never tried to join the mesh: maybe it cannot reach the control plane at " + argument(c, argControlPlane)
		r.Do = logsOf(f, c.Name)
		r.Evidence = withEvents(known("it has never joined"), f.event("Unhealthy", c.Name))
	case p.GetAgent().GetEnvoyDown() != "":
		r.Cause, r.Text, r.Do = "EnvoyDown", "its Envoy does not run: "+p.GetAgent().GetEnvoyDown(), logsOf(f, c.Name)
		r.Evidence = known("its agent reports this")
	case !p.GetKnown() && f.Pod.Status.PodIP != "": // a pod without an address has no Dataplane yet
		r.Cause, r.Text = "NotKnown", fmt.Sprintf("the control plane does not have its Dataplane %s of mesh %s", f.dataplane(), f.Pod.Labels[mesh.LabelMesh])
		if c.status.Ready {
			r.Keeps, r.Since = FromTraffic, nil // the start time is unknown
		}
		r.Evidence = known(notKnown)
	default:
		return away(p, r)
	}
	return []Finding{r}
}

// away judges an agent that has joined but is disconnected. The endpoint remains.
func away(p *adminv1.Proxy, r Finding) []Finding {
	r.Keeps, r.Cause = "", "NotConnected"
	switch state := p.GetAgentState(); {
	case state.GetPhase() == adminv1.AgentState_LOST:
		r.Text = "its agent is lost, its endpoint remains"
	case state.GetPhase() == adminv1.AgentState_STOPPED:
		r.Text = "its agent has drained and stopped"
	case state.GetPhase() == adminv1.AgentState_RECONNECTING:
		r.Text = "the session of its agent has just ended, or the control plane has just started, and the agent has not reconnected yet"
	case state.GetPhase() == adminv1.AgentState_CONNECTED && len(p.GetStreams()) == 0:
		r.Text = "its Envoy is disconnected from the control plane, and keeps its configuration"
	default:
		return nil
	}
	r.Evidence = []Evidence{{Of: controlPlane, Says: "the agent is " + strings.ToLower(p.GetAgentState().GetPhase().String()), At: r.Since}}
	if p.GetOtherWorkload() != "" {
		r.Evidence = append(r.Evidence, Evidence{Of: controlPlane, Says: p.GetOtherWorkload()})
	}
	return []Finding{r}
}

// expired returns when the agent's certificate expired, nil if it has not.
func expired(p *adminv1.Proxy, now time.Time) *time.Time {
	expires := p.GetAgent().GetCertificateExpires()
	if expires == nil || now.Before(expires.AsTime()) {
		return nil
	}
	return at(expires.AsTime())
}

// argument returns the value of a container's argument, or a text for a missing one.
func argument(c container, begin string) string {
	for _, a := range c.Args {
		if value, ok := strings.CutPrefix(a, begin); ok {
			return value
		}
	}
	return "an unknown address"
}

// listening reports resources that Envoy has rejected.
func listening(f *Facts, _ []Finding) []Finding {
	if f.Plane == nil {
		return refusedByEvents(f)
	}
	var all []Finding
	for kind, nack := range describe.Nacks(f.Plane.Proxy) {
		all = append(all, refusal(f, kind, nack))
	}
	return all
}

// calling reports outbounds at which the applications' calls fail. listening reports resources that Envoy rejects.
func calling(f *Facts, before []Finding) []Finding {
	if f.Plane == nil || f.Plane.Proxy.GetAgentState().GetPhase() != adminv1.AgentState_CONNECTED {
		return nil
	}
	var all []Finding
	for _, o := range f.Plane.Dataplane.GetOutbounds() {
		known := func(r Finding) bool { return r.Cause == refused && strings.Contains(r.Text, o.GetAddress()) }
		if o.GetHealth() != adminv1.Endpoint_NOT_READY || slices.ContainsFunc(before, known) {
			continue
		}
		all = append(all, Finding{
			Cause: "OutboundNotReady", Text: fmt.Sprintf("calls of its containers fail, or reach another program: outbound %s: %s", describe.Outbound(o), o.GetReason()), Since: at(timeOf(o.GetSince())),
			Evidence: []Evidence{{
				Of: controlPlane, Says: "outbound " + describe.Outbound(o) + " is not ready: " + o.GetReason(),
				At: at(timeOf(o.GetSince())),
			}},
		})
	}
	if refused := f.Plane.Proxy.GetAgent().GetRefused(); len(refused) > 0 {
		all = append(all, Finding{
			Cause: podcause.CallsRefused, Text: podcause.Calls(strings.Join(refused, "; ")),
			Do:       "See docs/parity.md for these calls, and what to do",
			Evidence: withEvents(nil, f.event(podcause.CallsRefused, mesh.ContainerSidecar)),
		})
	}
	return all
}

// refused is the cause of a rejected resource that by itself has no effect on the pod's state.
const refused Cause = "ConfigurationRefused"

// refusal is the finding for one resource that Envoy has rejected.
func refusal(f *Facts, kind string, nack *adminv1.Nack) Finding {
	r := Finding{
		Cause: refused, Text: fmt.Sprintf("its Envoy rejects %s %s, and keeps the previous version: %s", kind, nack.GetResource(), nack.GetReason()), Since: at(timeOf(nack.GetAt())),
		Evidence: []Evidence{{Of: "Envoy, " + kind + " " + nack.GetResource(), Says: nack.GetReason(), At: at(timeOf(nack.GetAt()))}},
	}
	if kind == string(adminv1.KindListeners) && strings.HasPrefix(nack.GetResource(), inboundListeners) {
		r.Cause, r.Keeps = podcause.ListenerRefused, FromReady
		r.Text = podcause.Listener(nack.GetResource(), nack.GetReason())
		r.Evidence = withEvents(r.Evidence, f.eventThat(func(e *Event) bool {
			return e.Reason == podcause.ListenerRefused && strings.HasPrefix(e.Note, podcause.Listener(nack.GetResource(), ""))
		}))
	}
	return r
}

// refusedByEvents uses events if there is no answer from the control plane.
func refusedByEvents(f *Facts) []Finding {
	c, ok := f.sidecar()
	e := f.event(podcause.ListenerRefused, mesh.ContainerSidecar)
	if !ok || e == nil || c.status == nil || c.status.Ready || c.status.State.Running == nil {
		return nil
	}
	return []Finding{{
		Cause: podcause.ListenerRefused, Keeps: FromReady, Text: e.Note, Since: at(e.At),
		Evidence: []Evidence{ofEvent(e)},
	}}
}

// timeOf returns the zero time for nil.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
