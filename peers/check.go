package peers

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

// Limits of one message.
const (
	maxText        = 512
	maxInbounds    = 10_000 // as many as a Dataplane may have
	maxFeatures    = 32
	maxAuthorities = 1000
)

// checkMessage returns what is wrong with a message, as a gRPC status that names the field.
func checkMessage(m *peerv1.ReportMessage) error {
	var c check
	switch m := m.GetMessage().(type) {
	case *peerv1.ReportMessage_Proxy:
		c.proxy(m.Proxy)
	case *peerv1.ReportMessage_Forgotten:
		c.id("forgotten", m.Forgotten)
	case *peerv1.ReportMessage_Replica:
		c.replica(m.Replica)
	case *peerv1.ReportMessage_Freeze:
		c.freeze(m.Freeze)
	}
	if c.err != nil {
		return status.Error(codes.InvalidArgument, c.err.Error())
	}
	return nil
}

// check keeps the first problem.
type check struct{ err error }

func (c *check) refuse(field string, value any, allowed string) {
	if c.err == nil {
		c.err = fmt.Errorf("%s: %v: %s", field, value, allowed)
	}
}

func (c *check) id(field, id string) {
	meshName, name := mesh.SplitID(id)
	if len(id) > maxText || meshName == "" || name == "" {
		c.refuse(field, fmt.Sprintf("%.100q", id), "must be MESH/NAME")
	}
}

func (c *check) text(field string, texts ...string) {
	for _, text := range texts {
		if len(text) > maxText {
			c.refuse(field, fmt.Sprintf("%d bytes", len(text)), fmt.Sprintf("must have at most %d", maxText))
		}
	}
}

func (c *check) count(field string, n, most int) {
	if n > most {
		c.refuse(field, n, fmt.Sprintf("must be at most %d", most))
	}
}

func (c *check) time(field string, t *timestamppb.Timestamp) {
	if t != nil && !t.IsValid() {
		c.refuse(field, t, "must be a time")
	}
}

func (c *check) order(field string, o *peerv1.Order) {
	if o.GetTime() < 0 || o.GetCount() < 0 {
		c.refuse(field, o, "must not be negative")
	}
}

func (c *check) addresses(field string, texts []string) {
	c.count(field, len(texts), maxInbounds)
	for _, text := range texts {
		if _, err := netip.ParseAddrPort(text); err != nil {
			c.refuse(field, fmt.Sprintf("%.100q", text), "must be ip:port")
			return
		}
	}
}

func (c *check) reasons(field string, reasons map[string]string) {
	c.addresses(field, slices.Sorted(maps.Keys(reasons)))
	for _, reason := range reasons {
		c.reason(field, reason)
	}
}

func (c *check) proxy(m *peerv1.Proxy) {
	c.id("proxy.id", m.GetId())
	c.text("proxy.instance", m.GetInstance())
	certificate := m.GetCertificate()
	c.text("proxy.certificate", certificate.GetSerial(), certificate.GetCa(), certificate.GetPath())
	c.time("proxy.certificate.not_after", certificate.GetNotAfter())
	session := m.GetSession()
	c.order("proxy.session.order", session.GetOrder())
	c.time("proxy.session.since", session.GetSince())
	c.time("proxy.session.ended", session.GetEnded())
	c.text("proxy.session", session.GetProcess(), session.GetAddress(), session.GetVersion(), session.GetEnvoyVersion(), session.GetEnvoyDown(), session.GetBundleId(), session.GetServingCaId())
	c.count("proxy.session.features", len(session.GetFeatures()), maxFeatures)
	c.text("proxy.session.features", session.GetFeatures()...)
	c.order("proxy.applications.order", m.GetApplications().GetOrder())
	c.reasons("proxy.applications.not_serving", m.GetApplications().GetNotServing())
	c.order("proxy.listeners.order", m.GetListeners().GetOrder())
	c.addresses("proxy.listeners.accepted", m.GetListeners().GetAccepted())
	c.reasons("proxy.listeners.refused", m.GetListeners().GetRefused())
	c.order("proxy.liveness.order", m.GetLiveness().GetOrder())
	c.liveness("proxy.liveness.said", m.GetLiveness().GetSaid())
	c.order("proxy.plaintext.order", m.GetPlaintext().GetOrder())
	c.text("proxy.plaintext.process", m.GetPlaintext().GetProcess())
	if err := agentv1.CheckPlaintext(m.GetPlaintext().GetSaid()); err != nil {
		c.refuse("proxy.plaintext.said", err, "must be as an agent says it")
	}
	c.time("proxy.waiting.since", m.GetWaiting().GetSince())
	c.reason("proxy.waiting.reason", m.GetWaiting().GetReason())
}

func (c *check) liveness(field string, m *agentv1.Liveness) {
	c.count(field, max(len(m.GetHeld()), len(m.GetPassing()), len(m.GetUnused())), agentv1.MaxReported)
	c.text(field, m.GetPassing()...)
	c.text(field, m.GetUnused()...)
	for _, h := range m.GetHeld() {
		c.text(field, h.GetContainer(), h.GetReason(), h.GetGrant())
		if f := h.GetFailing(); f != nil && !f.IsValid() {
			c.refuse(field+".failing", f, "must be a duration")
		}
	}
}

// reason checks a text of which the beginning is the control plane's own.
func (c *check) reason(field, reason string) {
	if len(reason) > agentv1.MaxReason+maxText {
		c.refuse(field, fmt.Sprintf("%d bytes", len(reason)), fmt.Sprintf("must have at most %d", agentv1.MaxReason+maxText))
	}
}

func (c *check) replica(m *peerv1.Replica) {
	c.count("replica.authorities", len(m.GetAuthorities()), maxAuthorities)
	all := m.GetAuthorities()
	if a := m.GetServingCa(); a != nil {
		all = append(slices.Clone(all), a)
	}
	for _, a := range all {
		c.text("replica.authorities", a.GetMesh(), a.GetStep(), a.GetSigningCa())
		if a.GetBundleEpoch() <= 0 {
			c.refuse("replica.authorities.bundle_epoch", a.GetBundleEpoch(), "must be at least 1")
		}
	}
}
