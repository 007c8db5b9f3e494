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

// Decision is the decision about one probe or hook.
type Decision struct {
	// Container is the owner's name.
	Container string
	// Type of the probe or hook.
	Type mesh.ProbeType
	// Written is the user's original in one line. For an injected pod it comes from the probe table.
	Written string
	// Probe is the agent's action, nil if the probe or hook is not rewritten.
	Probe *mesh.Probe
	// Kubelet has the kubelet's values for a probe that the agent answers, except for a probe with its own port.
	Kubelet Kubelet
	// Why it is not rewritten, "" if it is.
	Why string
	// Warn means that the user may not expect Why.
	Warn bool
	// Unguarded is why a liveness probe of a guarded pod is not guarded, "" for other probes.
	Unguarded string
}

// warning returns the warning for users, "" for none.
func (d Decision) warning() string {
	switch {
	case d.Unguarded != "":
		return "not guarded: " + d.Unguarded
	case d.Warn:
		return d.Why
	}
	return ""
}

// decideAll decides about all handlers, and builds the probe table of those that the agent answers.
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

// decide decides about a handler. It does not set Decision.Written, which is only for output. Its only side effect is
// to read Options.random for the ID of a new hook or exec probe.
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
		d.Why, d.Warn = field+": the pod's sidecar has another release, which may not support it: not rewritten", true
		return d, nil
	}
	if why := refusedByServer(p); why != "" {
		d.Why, d.Warn = why+": not rewritten, the API server decides about it", true
		return d, nil
	}
	if h.hook != nil && p.HTTPGet != nil {
		p.HTTPGet.Protocol = "" // the kubelet does not read this field (pkg/kubelet/lifecycle/handlers.go)
	}
	d.Probe, d.Kubelet = &p, in.kubeletOf(h, p)
	return d, nil
}

// rewritten returns the probe table's entry for a handler that an earlier injection has rewritten, nil for the user's
// handler.
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

// unsuitable returns why the agent never answers this kind of handler, "" if it is a request to a port, and whether to
// warn.
func (h handler) unsuitable() (why string, warn bool) {
	switch {
	case h.unread.written != nil:
		return h.unread.fields[0] + " is unknown to this release: not rewritten", true
	case h.actions == 0:
		return "unknown kind of probe: not rewritten", true
	case h.actions > 1:
		return "more than one handler: not rewritten, the API server decides about it", true
	}
	return h.refused, false
}

// obstacle returns why the agent cannot answer a handler, "" if it can, and whether to warn.
func (in *injection) obstacle(h handler) (why string, warn bool) {
	switch why, warn := h.unsuitable(); {
	case why == runsInContainer && h.kind == mesh.ProbeLiveness && in.guardedExec:
		why = in.execObstacle(h)
		return why, why != ""
	case why != "":
		return why, warn
	}
	why = in.notRedirected(h)
	port, _ := h.port()
	switch {
	case h.host == "" && in.forLoadBalancers(port):
		return h.asksForLoadBalancers()
	case why != "":
	case !in.enabled && !in.gateway: // mTLS only affects redirected requests to this pod
		return mesh.AnnotationVirtualProbes + " is disabled: " + in.withoutAgent(h), true
	case !in.enabled: // in a gateway the kubelet reaches the application itself
		why = mesh.AnnotationVirtualProbes + " is disabled"
	case h.init && !podspec.IsNativeSidecar(h.container):
		why = "an ordinary init container has no probes"
	case h.init && in.form == Container:
		return "this container starts before the agent, which cannot answer its probes: " + in.withoutAgent(h), !in.gateway
	default:
		return "", false
	}
	return why + ": not rewritten", in.enabled
}

// notRedirected returns why the handler's requests are never redirected, "" if they are in pods other than gateways.
func (in *injection) notRedirected(h handler) string {
	port, noPort := h.port()
	switch {
	case h.host != "":
		return fmt.Sprintf("it calls host %q, not the pod", h.host)
	case slices.Contains(in.settings.excludeInbound, port):
		return fmt.Sprintf("port %d is excluded from redirection by %s", port, mesh.AnnotationExcludeInboundPorts)
	}
	return noPort
}

// withoutAgent describes the effect of redirection on a probe that is not rewritten.
func (in *injection) withoutAgent(h handler) string {
	switch {
	case in.gateway:
		return "not rewritten"
	case h.asks.Protocol() == mesh.ProtocolTCP:
		return "not rewritten, and Envoy accepts each connection, so this probe never fails"
	}
	return "not rewritten, and a STRICT inbound rejects the kubelet"
}

// translate returns the agent's action for a handler.
func (in *injection) translate(h handler) (mesh.Probe, error) {
	port, _ := h.port()
	p := h.asks.At(port)
	p.Container, p.Type = h.container.Name, h.kind
	if h.probe != nil {
		p.TimeoutSeconds = h.probe.TimeoutSeconds
	}
	in.markGuarded(h, &p)
	p.SetDefaults()
	if !p.HasEffects() {
		p.ID = h.container.Name + "-" + string(h.kind)
		return p, nil
	}
	// The ID of a hook or command must not be guessable, since a request for it has effects.
	bits := make([]byte, 16)
	if _, err := io.ReadFull(in.options.random, bits); err != nil {
		return p, fmt.Errorf("create ID of %s: %w", h.field(), err)
	}
	p.ID = hex.EncodeToString(bits)
	return p, nil
}

// refusedByServer returns why the API server would reject this probe, or the agent a probe table that contains it, ""
// if neither would.
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

// rewrite changes a handler to call the agent, or its own port.
func (in *injection) rewrite(h handler, p mesh.Probe) {
	if p.VirtualPort != 0 {
		in.rewritePort(h, p)
		return
	}
	get := &corev1.HTTPGetAction{
		Path: p.VirtualPath(), Port: intstr.FromInt32(in.port),
		HTTPHeaders: []corev1.HTTPHeader{{Name: mesh.ProbeHeader, Value: p.ID}},
	}
	// Without last-applied-configuration, kubectl apply keeps a field that is missing in the new object: HTTPS would
	// remain.
	if old := h.asks.HTTPGet; old != nil && old.Scheme != "" {
		get.Scheme = corev1.URISchemeHTTP
	}
	in.patchHandler(h, get)
}

// newField returns the field of a probe that agents of earlier releases do not support, or "".
func newField(p mesh.Probe) string {
	switch {
	case p.HTTPGet != nil && p.HTTPGet.Protocol != "":
		return "httpGet.protocol"
	case p.GRPC != nil && p.GRPC.Mode != "":
		return "grpc.mode"
	}
	return ""
}

// removeNewField makes the kubelet call the agent as usual, by HTTP/1.1 and without TLS.
func (in *injection) removeNewField(h handler) {
	if field := newField(h.asks); field != "" {
		in.patch.remove(h.path() + "/" + strings.ReplaceAll(field, ".", "/"))
	}
}

// setNumbers sets the kubelet's timeout and threshold of a probe that calls the virtual port.
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

// patchHandler adds the change of a handler to get. It keeps other fields of an httpGet.
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

// Kubelet has the values of a rewritten probe that replace the user's.
type Kubelet struct {
	// TimeoutSeconds is one second more than the user's, which the agent enforces, so that its answer arrives in time. A
	// guarded probe has a timeout that even a slow agent does not reach.
	TimeoutSeconds int32
	// FailureThreshold is for a guarded probe, whose failures the agent counts; 0 means the user's.
	FailureThreshold int32
}

// KubeletOf returns the kubelet's values for p.
func KubeletOf(p mesh.Probe) Kubelet {
	k := Kubelet{TimeoutSeconds: int32(min(int64(p.TimeoutSeconds)+1, math.MaxInt32))}
	if p.Guarded {
		k.TimeoutSeconds, k.FailureThreshold = max(k.TimeoutSeconds, mesh.GuardedTimeoutSeconds), mesh.GuardedFailureThreshold
	}
	return k
}
