package mesh

import (
	"encoding/json"
	"fmt"
)

// TCPSocketProbe opens a connection.
type TCPSocketProbe struct {
	// Port that is asked.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// Name implements Handler.
func (*TCPSocketProbe) Name() string { return "tcpSocket" }

// Protocol implements Handler.
func (*TCPSocketProbe) Protocol() Protocol { return ProtocolTCP }

// At implements Handler.
func (*TCPSocketProbe) At(port int32) Probe { return Probe{TCPSocket: &TCPSocketProbe{Port: port}} }

// Written implements Handler.
func (t *TCPSocketProbe) Written(target string) string { return t.Name() + " " + target }

// Request implements Handler.
func (*TCPSocketProbe) Request(port int32) string { return fmt.Sprintf("connect to :%d", port) }

func (t *TCPSocketProbe) port() *int32 { return &t.Port }

func (*TCPSocketProbe) virtualPath(port string) string { return "/tcp/" + port }

func (*TCPSocketProbe) setDefaults() {}

func (d *probeDecoder) tcpSocket(data json.RawMessage) *TCPSocketProbe {
	var t TCPSocketProbe
	d.object("tcpSocket.", data, map[string]any{"port": &t.Port})
	return &t
}

func (*TCPSocketProbe) problems() []error { return nil }

func (*TCPSocketProbe) validate(*violations, string) {}
