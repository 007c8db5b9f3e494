package facts

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

// Limits on a replica's report of one proxy.
const (
	// MaxText limits a text, in bytes.
	MaxText     = 512
	maxInbounds = 10_000 // as many as a Dataplane may have
	maxFeatures = 32
)

// CheckProxy returns an error that names the first field of a replica's report that is out of bounds.
func CheckProxy(m *peerv1.Proxy) error {
	var b Bounds
	b.ID("proxy.id", m.GetId())
	b.Text("proxy.instance", m.GetInstance())
	certificate := m.GetCertificate()
	b.Text("proxy.certificate", certificate.GetSerial(), certificate.GetCa(), certificate.GetPath())
	b.Time("proxy.certificate.not_after", certificate.GetNotAfter())
	for _, k := range kinds {
		k.check(&b, m)
	}
	b.Time("proxy.waiting.since", m.GetWaiting().GetSince())
	b.reason("proxy.waiting.reason", m.GetWaiting().GetReason())
	return b.Err
}

// Bounds keeps the first field that is out of bounds.
type Bounds struct{ Err error }

// Refuse records a rejected value and what is allowed.
func (b *Bounds) Refuse(field string, value any, allowed string) {
	if b.Err == nil {
		b.Err = fmt.Errorf("%s: %v: %s", field, value, allowed)
	}
}

// ID checks the ID of a proxy.
func (b *Bounds) ID(field, id string) {
	meshName, name := mesh.SplitID(id)
	if len(id) > MaxText || meshName == "" || name == "" {
		b.Refuse(field, fmt.Sprintf("%.100q", id), "must be MESH/NAME")
	}
}

// Text checks texts.
func (b *Bounds) Text(field string, texts ...string) {
	for _, text := range texts {
		if len(text) > MaxText {
			b.Refuse(field, fmt.Sprintf("%d bytes", len(text)), fmt.Sprintf("must have at most %d", MaxText))
		}
	}
}

// Count checks a number.
func (b *Bounds) Count(field string, n, most int) {
	if n > most {
		b.Refuse(field, n, fmt.Sprintf("must be at most %d", most))
	}
}

// Time checks a time; nil is valid.
func (b *Bounds) Time(field string, t *timestamppb.Timestamp) {
	if t != nil && !t.IsValid() {
		b.Refuse(field, t, "must be a time")
	}
}

func (b *Bounds) order(field string, o *peerv1.Order) {
	if o.GetTime() < 0 || o.GetCount() < 0 {
		b.Refuse(field, o, "must not be negative")
	}
}

func (b *Bounds) addresses(field string, texts []string) {
	b.Count(field, len(texts), maxInbounds)
	for _, text := range texts {
		if _, err := netip.ParseAddrPort(text); err != nil {
			b.Refuse(field, fmt.Sprintf("%.100q", text), "must be ip:port")
			return
		}
	}
}

func (b *Bounds) reasons(field string, reasons map[string]string) {
	b.addresses(field, slices.Sorted(maps.Keys(reasons)))
	for _, reason := range reasons {
		b.reason(field, reason)
	}
}

// reason checks a text with a prefix of the control plane's own.
func (b *Bounds) reason(field, reason string) {
	if len(reason) > agentv1.MaxReason+MaxText {
		b.Refuse(field, fmt.Sprintf("%d bytes", len(reason)), fmt.Sprintf("must have at most %d", agentv1.MaxReason+MaxText))
	}
}
