package webhook

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/podspec"
)

// Decision is what becomes of one probe or hook.
type Decision struct {
	// Container that it belongs to.
	Container string
	// Type of the probe or hook.
	Type mesh.ProbeType
	// Written is what the user wrote, in one line. If the pod was injected before, it comes from the probe table.
	Written string
	// Probe is what the agent will do, nil if the probe or hook is left as it is.
	Probe *mesh.Probe
	// Kubelet is what the kubelet gets of a probe that the agent answers, but for one with a port of its own.
	Kubelet Kubelet
	// Why it is left as it is, "" if it is not.
	Why string
	// Warn says that Why is something that the user may not expect.
	Warn bool
	// Unguarded is why a liveness probe of a guarded pod is not guarded, "" for any other.
	Unguarded string
}

// warning returns what users should be told, "" if nothing.
func (d Decision) warning() string {
	switch {
	case d.Unguarded != "":
		return "not guarded: " + d.Unguarded
	case d.Warn:
		return d.Why
	}
	return ""
}

// decideAll decides about all handlers, and makes the probe table of those that are answered in the application's place.
func (in *injection) decideAll() (decisions []Decision, err error) {
	for _, h := range in.handlers {
		d, err := in.decide(h)
		if err != nil {
			return nil, err
		}
		d.Unguarded = in.unguarded(d)
		decisions = append(decisions, d)
	}
	if in.perPort() {
		if err := in.allocate(decisions); err != nil {
			return nil, err
		}
	}
	for _, d := range decisions {
		if d.Probe != nil {
			in.table = append(in.table, *d.Probe)
		}
	}
	in.encodedTable, err = in.table.Encode()
	return decisions, err
}

// decide decides about a handler, but for Decision.Written, which is only shown. It has no side effect but to read Options.random for the ID of a new hook.
func (in *injection) decide(h handler) (Decision, error) {
	d := Decision{Container: h.container.Name, Type: h.kind}
	if p := in.rewritten(h); p != nil {
		again := *p
		in.markGuarded(h, &again)
		d.Probe, d.Kubelet = &again, in.kubeletAgain(h, p, again)
		return d, nil
	}
	if d.Why, d.Warn = in.obstacle(h); d.Why != "" {
		return d, nil
	}
	p, err := in.translate(h)
	if err != nil {
		return d, err
	}
	if field := newField(p); field != "" && !in.sameRelease() {
		d.Why, d.Warn = field+": the sidecar that the pod has already is of another release, which may not know it: left as it is", true
		return d, nil
	}
	if why := refusedByServer(p); why != "" {
		d.Why, d.Warn = why+": left as it is, for the API server to judge", true
		return d, nil
	}
	if h.hook != nil && p.HTTPGet != nil {
		p.HTTPGet.Protocol = "" // the kubelet does not read it (pkg/kubelet/lifecycle/handlers.go)
	}
	d.Probe, d.Kubelet = &p, in.kubeletOf(h, p)
	return d, nil
}

// rewritten returns the entry of the probe table for a handler that an earlier injection has rewritten, nil for one that
// the user wrote.
func (in *injection) rewritten(h handler) *mesh.Probe {
	if in.perPort() {
		if p := in.ownPortOf(h); p != nil {
			return p
		}
	}
	get := h.asks.HTTPGet
	if in.earlier == nil || get == nil || h.target != intstr.FromInt32(in.earlier.port) {
		return nil
	}
	i := slices.IndexFunc(in.earlier.table, func(p mesh.Probe) bool {
		return p.ID != "" && p.Container == h.container.Name && p.Type == h.kind && p.VirtualPath() == get.Path &&
			slices.Equal(get.HTTPHeaders, []mesh.HTTPHeader{{Name: mesh.ProbeHeader, Value: p.ID}})
	})
	if i < 0 {
		return nil
	}
	return &in.earlier.table[i]
}

// unsuitable returns why the agent never answers this kind of handler, "" if it is a request to a port, and whether that is
// worth a warning.
func (h handler) unsuitable() (why string, warn bool) {
	switch {
	case len(h.unknown) > 0:
		return h.unknown[0] + " is not known to this release: left as it is", true
	case h.actions == 0:
		return "this kind of probe is not known: left as it is", true
	case h.actions > 1:
		return "there is more than one handler: left as it is, for the API server to judge", true
	}
	return h.refused, false
}

// obstacle returns why the agent cannot answer a handler, "" if it can, and whether that is worth a warning.
func (in *injection) obstacle(h handler) (why string, warn bool) {
	if why, warn := h.unsuitable(); why != "" {
		return why, warn
	}
	port, noPort := h.port()
	excluded := slices.Contains(in.settings.excludeInbound, port)
	// mTLS only affects requests to this pod that are redirected.
	redirected := h.host == "" && noPort == "" && !excluded
	switch {
	case h.host == "" && in.forLoadBalancers(port):
		return h.asksForLoadBalancers()
	case !in.enabled && redirected:
		return mesh.AnnotationVirtualProbes + " is disabled: " + h.withoutAgent(), true
	case h.host != "":
		why = fmt.Sprintf("host %q is asked and not the pod", h.host)
	case noPort != "":
		why = noPort
	case excluded:
		why = fmt.Sprintf("port %d is excluded from redirection by %s", port, mesh.AnnotationExcludeInboundPorts)
	case h.init && !podspec.IsNativeSidecar(h.container):
		why = "an init container that ends has no probes"
	case h.init && in.form == Container:
		return "this container starts before the agent, which cannot answer for it: " + h.withoutAgent(), true
	default:
		return "", false
	}
	return why + ": left as it is", in.enabled
}

// withoutAgent says what redirection does to a probe that is left as it is.
func (h handler) withoutAgent() string {
	if h.asks.Protocol() == mesh.ProtocolTCP {
		return "left as it is, and Envoy takes each connection in the application's place, so that this probe cannot fail"
	}
	return "left as it is, and an inbound that is STRICT refuses the kubelet"
}

// translate returns what the agent will do in place of the kubelet.
func (in *injection) translate(h handler) (mesh.Probe, error) {
	port, _ := h.port()
	p := h.asks.At(port)
	p.Container, p.Type = h.container.Name, h.kind
	if h.probe != nil {
		p.TimeoutSeconds = h.probe.TimeoutSeconds
	}
	in.markGuarded(h, &p)
	p.SetDefaults()
	if !h.kind.IsHook() {
		p.ID = h.container.Name + "-" + string(h.kind)
		return p, nil
	}
	// A hook has effects, so its ID must be impossible to guess.
	bits := make([]byte, 16)
	if _, err := io.ReadFull(in.options.random, bits); err != nil {
		return p, fmt.Errorf("make the id of %s: %w", h.field(), err)
	}
	p.ID = hex.EncodeToString(bits)
	return p, nil
}

// refusedByServer returns why the API server would refuse this probe, or the agent a table with it, "" if neither would.
func refusedByServer(p mesh.Probe) string {
	if p.HTTPGet != nil {
		for _, h := range p.HTTPGet.HTTPHeaders {
			if len(validation.IsHTTPHeaderName(h.Name)) > 0 {
				return fmt.Sprintf("httpGet.httpHeaders: %q: must be a name of a-z, A-Z, 0-9 and -", h.Name)
			}
		}
	}
	if field, ok := errors.AsType[*mesh.FieldError](p.Validate()); ok {
		return field.Error()
	}
	return ""
}

// rewrite makes a handler ask the agent, or its own port.
func (in *injection) rewrite(h handler, p mesh.Probe) {
	if p.VirtualPort != 0 {
		in.rewritePort(h, p)
		return
	}
	get := &corev1.HTTPGetAction{
		Path: p.VirtualPath(), Port: intstr.FromInt32(in.port),
		HTTPHeaders: []corev1.HTTPHeader{{Name: mesh.ProbeHeader, Value: p.ID}},
	}
	// Where there is no last-applied-configuration, kubectl apply keeps a field that is absent: HTTPS would stay.
	if old := h.asks.HTTPGet; old != nil && old.Scheme != "" {
		get.Scheme = corev1.URISchemeHTTP
	}
	in.patchHandler(h, get)
}

// newField returns the field of a probe that agents before this release do not know, "" if there is none.
func newField(p mesh.Probe) string {
	switch {
	case p.HTTPGet != nil && p.HTTPGet.Protocol != "":
		return "httpGet.protocol"
	case p.GRPC != nil && p.GRPC.Mode != "":
		return "grpc.mode"
	}
	return ""
}

// removeNewField has the kubelet ask the agent as it always does: by HTTP/1.1, and without TLS.
func (in *injection) removeNewField(h handler) {
	if field := newField(h.asks); field != "" {
		in.patch.remove(h.path() + "/" + strings.ReplaceAll(field, ".", "/"))
	}
}

// setNumbers gives the kubelet its numbers of a probe that asks the virtual port.
func (in *injection) setNumbers(h handler, d Decision) {
	if h.probe == nil || d.Probe.VirtualPort != 0 {
		return
	}
	if k := d.Kubelet; k.TimeoutSeconds != h.probe.TimeoutSeconds {
		in.patch.add(h.path()+"/timeoutSeconds", k.TimeoutSeconds)
	}
	if k := d.Kubelet; k.FailureThreshold != 0 && k.FailureThreshold != h.probe.FailureThreshold {
		in.patch.add(h.path()+"/failureThreshold", k.FailureThreshold)
	}
}

// patchHandler records that a handler becomes get. What else is in an httpGet stays.
func (in *injection) patchHandler(h handler, get *corev1.HTTPGetAction) {
	path := h.path()
	old := h.asks.HTTPGet
	if old == nil {
		in.patch.remove(path + "/" + h.asks.HandlerName())
		in.patch.add(path+"/httpGet", get)
		return
	}
	in.patch.add(path+"/httpGet/path", get.Path)
	in.patch.add(path+"/httpGet/port", get.Port)
	in.patch.add(path+"/httpGet/httpHeaders", get.HTTPHeaders)
	if old.Scheme != string(get.Scheme) {
		in.patch.add(path+"/httpGet/scheme", get.Scheme)
	}
	in.removeNewField(h)
}

// Kubelet is what the kubelet gets of a rewritten probe in place of the user's values.
type Kubelet struct {
	// TimeoutSeconds is one second more than the user's, which the agent enforces, so that its answer arrives in time. For a probe that is guarded no slow
	// agent reaches it.
	TimeoutSeconds int32
	// FailureThreshold of a guarded probe, whose failures the agent counts; 0 for the user's.
	FailureThreshold int32
}

// KubeletOf returns what the kubelet gets of p.
func KubeletOf(p mesh.Probe) Kubelet {
	k := Kubelet{TimeoutSeconds: int32(min(int64(p.TimeoutSeconds)+1, math.MaxInt32))}
	if p.Guarded {
		k.TimeoutSeconds, k.FailureThreshold = max(k.TimeoutSeconds, mesh.GuardedTimeoutSeconds), mesh.GuardedFailureThreshold
	}
	return k
}
