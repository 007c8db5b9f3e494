package mesh

import (
	"errors"
	"strconv"
)

// ProbeType is the type of a probe or hook.
type ProbeType string

// Types of probes and hooks. An entry of the table without a type is a probe.
const (
	ProbeStartup   ProbeType = "startup"
	ProbeLiveness  ProbeType = "liveness"
	ProbeReadiness ProbeType = "readiness"
	ProbePostStart ProbeType = "postStart"
	ProbePreStop   ProbeType = "preStop"
)

// probeTypes are the types that an entry of the table may have.
var probeTypes = []ProbeType{"", ProbeStartup, ProbeLiveness, ProbeReadiness, ProbePostStart, ProbePreStop}

// IsHook reports whether it is a lifecycle hook rather than a probe. A hook has effects, and the kubelet calls it with
// another client.
func (t ProbeType) IsHook() bool { return t == ProbePostStart || t == ProbePreStop }

// ProbesMode selects the ports to which the kubelet sends the probes of a pod's applications
// (docs/decisions/028-per-port-mode.md).
type ProbesMode string

// Modes of probes.
const (
	// ProbesUnified: the agent answers all probes and hooks, on the virtual port.
	ProbesUnified ProbesMode = "unified"
	// ProbesPerPort: the agent answers HTTP probes and hooks on the virtual port, and each gRPC or TCP probe has its
	// own port.
	ProbesPerPort ProbesMode = "per-port"
)

// AllowedProbesMode is FieldError.Allowed of a ProbesMode.
const AllowedProbesMode = "must be unified or per-port"

// ParseProbesMode parses a mode. The error says what is allowed.
func ParseProbesMode(text string) (ProbesMode, error) {
	switch m := ProbesMode(text); m {
	case ProbesUnified, ProbesPerPort:
		return m, nil
	}
	return "", errors.New(AllowedProbesMode)
}

// Liveness is an operator's override for the guarded liveness probes of a running pod.
type Liveness string

// Values of AnnotationLiveness.
const (
	// LivenessSuspended: no failure restarts a container.
	LivenessSuspended Liveness = "suspended"
	// LivenessNative: the kubelet decides alone, as if they were not guarded.
	LivenessNative Liveness = "native"
)

// ParseLiveness parses the value of AnnotationLiveness. The error says what is allowed.
func ParseLiveness(text string) (Liveness, error) {
	switch l := Liveness(text); l {
	case LivenessSuspended, LivenessNative:
		return l, nil
	}
	return "", errLiveness
}

// LivenessHold is the answer to the kubelet for a liveness probe whose failure is held back, or that the agent cannot
// check (decision 082).
type LivenessHold string

// Values of LivenessHold.
const (
	// HoldErrored: a check that could not be made, which the kubelet discards.
	HoldErrored LivenessHold = "errored"
	// HoldWarning: a redirect that the kubelet does not follow. The check counts as passed, with an event that says HELD.
	HoldWarning LivenessHold = "warning"
)

// AllowedLivenessHold is FieldError.Allowed of a LivenessHold.
const AllowedLivenessHold = "must be errored or warning"

// ParseLivenessHold parses a LivenessHold. The error says what is allowed.
func ParseLivenessHold(text string) (LivenessHold, error) {
	switch h := LivenessHold(text); h {
	case HoldErrored, HoldWarning:
		return h, nil
	}
	return "", errors.New(AllowedLivenessHold)
}

// Values of a guarded liveness probe for the kubelet, instead of the user's: the agent counts timeouts and failures
// (decision 072).
const (
	// GuardedTimeoutSeconds is longer than any pause of an agent: the kubelet counts its own timeout as a failure.
	GuardedTimeoutSeconds = 600
	// GuardedFailureThreshold is more than the failures that the kubelet counts for three ends of the sidecar's
	// container: one each, for the open request. Nothing resets its count while a failure is held back.
	GuardedFailureThreshold = 5
)

// KubeletCountsErrored begins the result of "sonde-dp check kubelet" for a kubelet that restarts containers on failures
// held as errored.
const KubeletCountsErrored = "the kubelet counts errored probes as failures"

// ProbeAlive is the value of ProbeHeader, and PathAlive the path, of the kubelet's request to the virtual port that
// tests whether the agent itself answers.
const (
	ProbeAlive = ContainerSidecar + "-" + string(ProbeLiveness)
	PathAlive  = "/sonde/alive"
)

// Probe is a probe or hook as the user wrote it, with named ports resolved. It has exactly one of HTTPGet, TCPSocket,
// GRPC and Exec.
type Probe struct {
	// ID is the value of ProbeHeader, unique in the table; "" if the probe is only identified by its path.
	ID string `json:"id,omitempty"`
	// Container it belongs to.
	Container string `json:"container,omitempty"`
	// Type of the probe, "" if unknown.
	Type ProbeType `json:"type,omitempty"`
	// TimeoutSeconds of one check. Default 1. Hooks have none.
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// VirtualPort is the separate port of a TCP or gRPC probe in ProbesPerPort mode, else 0.
	VirtualPort int32 `json:"virtualPort,omitempty"`
	// Guarded means that a failure waits until a restart of the container is granted. Only liveness probes are guarded.
	Guarded bool `json:"guarded,omitempty"`
	// FailureThreshold belongs to a guarded probe: how many failures in a row restart the container. Default 3. Other
	// probes do not have it.
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
	// PeriodSeconds between two checks by the kubelet. Default 10. If the probe is not guarded, only a longer period is in
	// the table; tables of earlier releases have none.
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`

	HTTPGet   *HTTPGetProbe   `json:"httpGet,omitempty"`
	TCPSocket *TCPSocketProbe `json:"tcpSocket,omitempty"`
	GRPC      *GRPCProbe      `json:"grpc,omitempty"`
	Exec      *ExecProbe      `json:"exec,omitempty"`
}

// allHandlers are the names of all kinds of handlers.
const allHandlers = "httpGet, tcpSocket, grpc and exec"

// handler is the action of a probe or hook. The methods return the differences between its kinds, HTTPGetProbe,
// TCPSocketProbe, GRPCProbe and ExecProbe. Methods without a comment are described at the methods of Probe.
type handler interface {
	name() string
	protocol() Protocol
	at(port int32) Probe
	written(target string) string
	request(port int32) string
	port() *int32
	virtualPath(port string) string
	setDefaults()
	// problem returns an error for an invalid handler, nil if valid. path is the path of the handler.
	problem(path string) *FieldError
	// validate checks the handler of a ServiceProbe, except its port.
	validate(v *violations, path string)
}

// MatchHandler returns the result of the function for a probe's handler, and zero without a handler. Each kind of
// handler has its own parameter, so that a caller that forgets a new kind does not compile.
func MatchHandler[T any](
	p Probe, httpGet func(*HTTPGetProbe) T, tcpSocket func(*TCPSocketProbe) T, grpc func(*GRPCProbe) T,
	exec func(*ExecProbe) T,
) (result T) {
	switch h := p.handler().(type) {
	case *HTTPGetProbe:
		return httpGet(h)
	case *TCPSocketProbe:
		return tcpSocket(h)
	case *GRPCProbe:
		return grpc(h)
	case *ExecProbe:
		return exec(h)
	}
	return result
}

// handlers yields the handlers that are set. A valid probe has one.
func (p Probe) handlers(yield func(handler) bool) {
	if p.HTTPGet != nil && !yield(p.HTTPGet) {
		return
	}
	if p.TCPSocket != nil && !yield(p.TCPSocket) {
		return
	}
	if p.GRPC != nil && !yield(p.GRPC) {
		return
	}
	if p.Exec != nil {
		yield(p.Exec)
	}
}

func (p Probe) handlerNames() (names []string) {
	for h := range p.handlers {
		names = append(names, h.name())
	}
	return names
}

// handler returns the handler, nil without one.
func (p Probe) handler() handler {
	for h := range p.handlers {
		return h
	}
	return nil
}

// HandlerName returns the manifest field of the handler, such as httpGet.
func (p Probe) HandlerName() string { return p.handler().name() }

// Protocol returns the protocol of the probe: ProtocolHTTP, ProtocolGRPC, or ProtocolTCP if it only opens a connection;
// "" for exec, and without a handler.
func (p Probe) Protocol() Protocol {
	if h := p.handler(); h != nil {
		return h.protocol()
	}
	return ""
}

// Port returns the port of the application that is probed, 0 for exec and without a handler.
func (p Probe) Port() int32 {
	if h := p.handler(); h != nil {
		return *h.port()
	}
	return 0
}

// At returns a probe with only a copy of the handler, for that port.
func (p Probe) At(port int32) Probe { return p.handler().at(port) }

// Written returns the handler in the form of manifests, in one line. target is the host, which may be "", and port:
// ":8080".
func (p Probe) Written(target string) string { return p.handler().written(target) }

// Request returns the request to a port in one line, for display.
func (p Probe) Request(port int32) string { return p.handler().request(port) }

// WantsOwnPort reports whether the probe gets a VirtualPort in ProbesPerPort mode. HTTP and exec probes share one port
// of the agent.
func (p Probe) WantsOwnPort() bool { return p.Protocol() != ProtocolHTTP && p.Exec == nil }

// HasEffects reports whether a check may change the application, as a hook and a command do. Then only a caller that
// knows the ID may cause one: it is random, and the path alone finds nothing.
func (p Probe) HasEffects() bool { return p.Type.IsHook() || p.Exec != nil }

// Redirected reports whether the kernel redirects the VirtualPort to the application, so that the agent has nothing to
// answer.
func (p Probe) Redirected() bool { return p.VirtualPort != 0 && p.Protocol() == ProtocolTCP }

// VirtualPath returns the path and query of the probe on the virtual port: /<port><target>, /tcp/<port>, /grpc/<port>,
// /grpc/<port>/<service> or /exec/<container>. Bytes that the kubelet would not send unchanged are escaped. Probes that
// differ only in such bytes have the same VirtualPath; ProbeHeader tells them apart.
func (p Probe) VirtualPath() string {
	if p.Exec != nil {
		return p.Exec.virtualPath(p.Container)
	}
	return p.handler().virtualPath(strconv.Itoa(int(p.Port())))
}
