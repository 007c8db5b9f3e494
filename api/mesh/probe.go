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

// IsHook reports whether it is a lifecycle hook and not a probe. A hook has effects, and the kubelet calls it with another
// client.
func (t ProbeType) IsHook() bool { return t == ProbePostStart || t == ProbePreStop }

// ProbesMode is where the kubelet asks in the place of a pod's applications (docs/decisions/028-per-port-mode.md).
type ProbesMode string

// Modes of probes.
const (
	// ProbesUnified: the agent answers all probes and hooks, on the virtual port.
	ProbesUnified ProbesMode = "unified"
	// ProbesPerPort: the agent answers HTTP probes and hooks on the virtual port, and each gRPC or TCP probe has a port of its own.
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

// Liveness is what an operator asks of the guarded liveness probes of a running pod.
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

// What the kubelet gets instead of the user's values with a guarded liveness probe, whose time-outs and failures the agent counts (decision 072).
const (
	// GuardedTimeoutSeconds is longer than any agent is slow, or is stopped: the kubelet counts its own time-out as a failure.
	GuardedTimeoutSeconds = 600
	// GuardedFailureThreshold is more than the failures with which the kubelet counts three ends of the sidecar's container: one each, for the request that
	// is open then. Nothing resets its count while a failure is held back.
	GuardedFailureThreshold = 5
)

// ProbeAlive is the value of ProbeHeader, and PathAlive the path, with which the kubelet asks the virtual port whether the agent itself answers.
const (
	ProbeAlive = ContainerSidecar + "-" + string(ProbeLiveness)
	PathAlive  = "/sonde/alive"
)

// Probe is a probe or hook as the user wrote it, with named ports resolved. It has exactly one of HTTPGet, TCPSocket
// and GRPC.
type Probe struct {
	// ID is the value of ProbeHeader, unique in the table; "" if the probe is only identified by its path.
	ID string `json:"id,omitempty"`
	// Container it belongs to.
	Container string `json:"container,omitempty"`
	// Type of the probe, "" if it is not known.
	Type ProbeType `json:"type,omitempty"`
	// TimeoutSeconds of one check. Default 1. Hooks have none.
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// VirtualPort is the port of its own that a TCP or gRPC probe has in ProbesPerPort mode, else 0.
	VirtualPort int32 `json:"virtualPort,omitempty"`
	// Guarded says that a failure waits until a restart of the container is granted. Only liveness probes are guarded.
	Guarded bool `json:"guarded,omitempty"`
	// FailureThreshold and PeriodSeconds are those of a probe that is guarded, with defaults 3 and 10: how many failures in a row restart the
	// container, and how far apart checks are. Others have none.
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
	PeriodSeconds    int32 `json:"periodSeconds,omitempty"`

	HTTPGet   *HTTPGetProbe   `json:"httpGet,omitempty"`
	TCPSocket *TCPSocketProbe `json:"tcpSocket,omitempty"`
	GRPC      *GRPCProbe      `json:"grpc,omitempty"`
}

// allHandlers are the names of all kinds of handlers.
const allHandlers = "httpGet, tcpSocket and grpc"

// handler is what a probe or hook asks the application. What differs between its kinds, HTTPGetProbe, TCPSocketProbe and GRPCProbe, is what
// the methods return. Those without a comment are said at the methods of Probe.
type handler interface {
	name() string
	protocol() Protocol
	at(port int32) Probe
	written(target string) string
	request(port int32) string
	port() *int32
	virtualPath(port string) string
	setDefaults()
	// problem returns what is wrong with how the application is asked, nil if nothing is. path is that of the handler.
	problem(path string) *FieldError
	// validate checks the handler of a ServiceProbe, except its port.
	validate(v *violations, path string)
}

// MatchHandler returns what the function of a probe's handler returns, and zero without a handler. A kind of handler is one more
// function here, so that a caller that forgets it does not compile.
func MatchHandler[T any](
	p Probe, httpGet func(*HTTPGetProbe) T, tcpSocket func(*TCPSocketProbe) T, grpc func(*GRPCProbe) T,
) (result T) {
	switch h := p.handler().(type) {
	case *HTTPGetProbe:
		return httpGet(h)
	case *TCPSocketProbe:
		return tcpSocket(h)
	case *GRPCProbe:
		return grpc(h)
	}
	return result
}

// handlers yields the handlers that are there. A valid probe has one.
func (p Probe) handlers(yield func(handler) bool) {
	if p.HTTPGet != nil && !yield(p.HTTPGet) {
		return
	}
	if p.TCPSocket != nil && !yield(p.TCPSocket) {
		return
	}
	if p.GRPC != nil {
		yield(p.GRPC)
	}
}

func (p Probe) handlerNames() (names []string) {
	for h := range p.handlers {
		names = append(names, h.name())
	}
	return names
}

// handler returns the handler, nil if there is none.
func (p Probe) handler() handler {
	for h := range p.handlers {
		return h
	}
	return nil
}

// HandlerName returns the field of manifests that has the handler: httpGet.
func (p Probe) HandlerName() string { return p.handler().name() }

// Protocol returns what is spoken: ProtocolHTTP, ProtocolGRPC, or ProtocolTCP where a connection is all that is asked for; "" without a
// handler.
func (p Probe) Protocol() Protocol {
	if h := p.handler(); h != nil {
		return h.protocol()
	}
	return ""
}

// Port returns the port of the application that is probed, 0 without a handler.
func (p Probe) Port() int32 {
	if h := p.handler(); h != nil {
		return *h.port()
	}
	return 0
}

// At returns a probe with a copy of the handler for that port, and nothing else.
func (p Probe) At(port int32) Probe { return p.handler().at(port) }

// Written returns the handler as manifests have it, in one line. target is the host, which may be "", and port: ":8080".
func (p Probe) Written(target string) string { return p.handler().written(target) }

// Request returns in one line what is asked of a port, to be shown.
func (p Probe) Request(port int32) string { return p.handler().request(port) }

// WantsOwnPort reports whether the probe gets a VirtualPort in ProbesPerPort mode. Those over HTTP share one port of the agent.
func (p Probe) WantsOwnPort() bool { return p.Protocol() != ProtocolHTTP }

// Redirected reports whether the kernel redirects the VirtualPort to the application, so that the agent has nothing to answer.
func (p Probe) Redirected() bool { return p.VirtualPort != 0 && p.Protocol() == ProtocolTCP }

// VirtualPath returns the path and query of the probe on the virtual port: /<port><target>, /tcp/<port>, /grpc/<port> or
// /grpc/<port>/<service>. Bytes that the kubelet would not send unchanged are escaped. Probes that differ only in such
// bytes have the same VirtualPath; ProbeHeader tells them apart.
func (p Probe) VirtualPath() string {
	return p.handler().virtualPath(strconv.Itoa(int(p.Port())))
}
