package mesh

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Redirection says which connections of a pod the kernel redirects to Envoy. ContainerInit gets it as arguments. A pod
// without ContainerInit has it as the value of EnvRedirection: environment variables of a pod never change, unlike its
// annotations.
//
// +kubebuilder:object:generate=false
type Redirection struct {
	// OutboundOnly leaves incoming connections alone, except those to PortReadiness.
	OutboundOnly bool `json:"outboundOnly,omitempty"`
	// ExcludeInboundPorts are ports of the pod to which connections are not redirected.
	ExcludeInboundPorts []int32 `json:"excludeInboundPorts,omitempty"`
	// ExcludeOutboundPorts are ports of other hosts to which connections are not redirected.
	ExcludeOutboundPorts []int32 `json:"excludeOutboundPorts,omitempty"`
	// MetricsPort is the agent's port for Prometheus, GuardedPort the one for guarded liveness probes; 0 for none.
	MetricsPort int32 `json:"metricsPort,omitempty"`
	GuardedPort int32 `json:"guardedPort,omitempty"`
	// TCPProbes are ports at which the kernel answers in the application's place.
	TCPProbes []RedirectedProbe `json:"tcpProbes,omitempty"`
	// Families are the IP families to redirect: dualstack, ipv4 or ipv6.
	Families string `json:"families"`
}

// RedirectedProbe is a port that the kernel redirects to a port of the application.
//
// +kubebuilder:object:generate=false
type RedirectedProbe struct {
	Port   int32 `json:"port"`
	Target int32 `json:"target"`
}

// String returns the probe as ContainerInit takes it.
func (p RedirectedProbe) String() string {
	return strconv.Itoa(int(p.Port)) + ":" + strconv.Itoa(int(p.Target))
}

// Bounds of a pod's requests without ContainerInit, since one daemon per node serves all pods.
const (
	maxRedirectionPorts = 2000
	MaxRedirectionBytes = 64 << 10
)

// Encode returns the value of EnvRedirection, or a *FieldError if a pod requests too many ports.
func (r *Redirection) Encode() (string, error) {
	if err := r.check(); err != nil {
		return "", err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode redirection: %w", err)
	}
	return string(text), nil
}

func (r *Redirection) check() error {
	if n := len(r.ExcludeInboundPorts) + len(r.ExcludeOutboundPorts) + len(r.TCPProbes); n > maxRedirectionPorts {
		return &FieldError{
			Field: "excluded ports and TCP probes", Value: strconv.Itoa(n), Bare: true, Allowed: fmt.Sprintf("must be at most %d in a pod without %s", maxRedirectionPorts, ContainerInit),
		}
	}
	return nil
}

// ParseRedirection parses the value of EnvRedirection; the code that writes the rules validates the ports. A key
// unknown to this release is an error, since incomplete rules must not pass for complete.
func ParseRedirection(text string) (r Redirection, err error) {
	if len(text) > MaxRedirectionBytes {
		return Redirection{}, fmt.Errorf("parse redirection: has %d bytes, must have at most %d", len(text), MaxRedirectionBytes)
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Redirection{}, fmt.Errorf("parse redirection: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Redirection{}, errors.New("parse redirection: must be one JSON object, and nothing after it")
	}
	if err := r.check(); err != nil {
		return Redirection{}, fmt.Errorf("parse redirection: %w", err)
	}
	return r, nil
}
