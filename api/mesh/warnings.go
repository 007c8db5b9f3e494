package mesh

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Warner is an Object that may be accepted although something in it is deprecated or without effect.
//
// +kubebuilder:object:generate=false
type Warner interface {
	// Warnings returns the warnings. Paths are as in Validate.
	Warnings() []*FieldError
}

var _, _, _ Warner = (*Mesh)(nil), (*Dataplane)(nil), (*MeshService)(nil)

type warnings []*FieldError

func (w *warnings) note(path, value, text string) {
	if len(*w) == maxViolations { // there may be as many as items
		return
	}
	*w = append(*w, &FieldError{Field: path, Value: Shorten(value, maxText), Allowed: text})
}

// Warnings implements Warner. Leaving out the section mtls is a valid choice.
func (m *Mesh) Warnings() []*FieldError {
	var w warnings
	t := m.Spec.MTLS
	switch {
	case t == nil || t.EnabledBackend != "":
	case len(t.Backends) == 0:
		w.note("mtls", "", "has no backend: mTLS is off, and all traffic is plain text. Write one in backends and its name in enabledBackend, or leave mtls out")
	default:
		names, modes := make([]string, 0, len(t.Backends)), make([]MTLSMode, 0, 1)
		for i := range t.Backends {
			b := &t.Backends[i]
			names = append(names, b.Name)
			if !slices.Contains(modes, b.Mode) {
				modes = append(modes, b.Mode)
			}
		}
		w.note("mtls.enabledBackend",
			"", fmt.Sprintf("is missing: mTLS is off, and all traffic is plain text, although backends say %s. To turn mTLS on, write the name of a backend: %s",
				list(modes), Few(names)))
	}
	return w
}

// Warnings implements Warner.
func (d *Dataplane) Warnings() []*FieldError {
	var w warnings
	for _, f := range []struct {
		name  string
		given bool
	}{{"probes", d.Spec.Probes != nil}, {"tcpProbes", d.Spec.TCPProbes != nil}} {
		if f.given {
			w.note(f.name, "", "is deprecated and will be removed in Sonde 2.0: it only has an effect in the per-port mode ("+
				AnnotationVirtualProbesMode+")")
		}
	}
	for i := range d.Spec.Networking.Inbound {
		d.warnInbound(&w, fmt.Sprintf("networking.inbound[%d]", i), &d.Spec.Networking.Inbound[i])
	}
	if tp := d.Spec.Networking.TransparentProxying; tp != nil && tp.ReachableServices != nil &&
		len(tp.ReachableServices) == 0 && !d.IsPod() {
		w.note("networking.transparentProxying.reachableServices", "",
			"is empty: the proxy reaches no service at a virtual address. In Kuma it reaches all: to get that, leave the field out")
	}
	if d.Identity.Path == "" && d.Workload() == "" {
		w.note(tagField("labels", LabelWorkload), "", "is missing, and no tag "+TagService+
			" stands for it: the certificate only names this Dataplane, as "+
			DataplanePath(d.Name)+
			", so that clients need an update for each replica. Write the label with the same value for all replicas")
	}
	for i, out := range d.Spec.Networking.Outbound {
		for _, key := range slices.Sorted(maps.Keys(out.Tags)) {
			if key != TagService {
				w.note(tagField(fmt.Sprintf("networking.outbound[%d].tags", i), key), out.Tags[key],
					"has no effect: an outbound only uses "+TagService)
			}
		}
		if out.BackendRef != nil {
			w.givenLabels(fmt.Sprintf("networking.outbound[%d].backendRef.labels", i), "MeshService", out.BackendRef.Labels)
		}
	}
	return w
}

// inboundTags are the tags of an inbound that have an effect, without Prefix.
var inboundTags = []string{strings.TrimPrefix(TagService, Prefix), strings.TrimPrefix(TagProtocol, Prefix),
	strings.TrimPrefix(LabelWorkload, Prefix)}

// kumaLabels are labels that Kuma's control plane adds to objects, besides those in AllLabels.
var kumaLabels = []string{Prefix + "env", Prefix + "origin", Prefix + "proxy-type", Prefix + "zone"}

// givenLabels warns of labels in a selector that Kuma adds, and that the selected objects may lack.
func (w *warnings) givenLabels(path, kind string, labels map[string]string) {
	for _, key := range kumaLabels {
		if value, ok := labels[key]; ok {
			w.note(tagField(path, key), value, "is a label that Kuma adds, and Sonde does not: a "+kind+
				" is selected only if the label is written on it")
		}
	}
}

func (d *Dataplane) warnInbound(w *warnings, path string, in *Inbound) {
	if len(in.Tags) > 0 && in.Tags.Service() == "" {
		w.note(tagField(path+".tags", TagService), "",
			"is missing: others reach this inbound only by a MeshService that selects it")
	}
	for _, key := range slices.Sorted(maps.Keys(in.Tags)) {
		name, ours := strings.CutPrefix(key, Prefix)
		if near, _ := Nearest(name, inboundTags); ours && near != "" && near != name {
			w.note(tagField(path+".tags", key), in.Tags[key], "has no effect: did you mean "+Prefix+near+"?")
		}
	}
	if in.Health != nil && in.Health.Ready == nil {
		w.note(path+".health", "",
			"is empty: the inbound is ready. In Kuma it is not, and its tools leave ready: false out: write what you mean")
	}
	if tag, label := in.Tags[LabelWorkload], d.Labels[LabelWorkload]; tag != "" && label != "" && tag != label {
		w.note(tagField(path+".tags", LabelWorkload), tag, fmt.Sprintf("has no effect: the label %s names the workload, %q",
			LabelWorkload, label))
	}
}

// Warnings implements Warner.
func (s *MeshService) Warnings() []*FieldError {
	var w warnings
	if l := s.Spec.Selector.DataplaneLabels; l != nil {
		w.givenLabels("selector.dataplaneLabels.matchLabels", "Dataplane", l.MatchLabels)
	}
	if len(s.Spec.Ports) == 0 {
		w.note("ports", "", "is missing: without a port the MeshService is no service, and no client can reach it")
	}
	return w
}
