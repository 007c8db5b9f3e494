package mesh

import "fmt"

// TCPSocketProbe opens a connection.
type TCPSocketProbe struct {
	// Port to connect to.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

func (*TCPSocketProbe) name() string { return "tcpSocket" }

func (*TCPSocketProbe) protocol() Protocol { return ProtocolTCP }

func (*TCPSocketProbe) at(port int32) Probe { return Probe{TCPSocket: &TCPSocketProbe{Port: port}} }

func (t *TCPSocketProbe) written(target string) string { return t.name() + " " + target }

func (*TCPSocketProbe) request(port int32) string { return fmt.Sprintf("connect to :%d", port) }

func (t *TCPSocketProbe) port() *int32 { return &t.Port }

func (*TCPSocketProbe) virtualPath(port string) string { return "/tcp/" + port }

func (*TCPSocketProbe) setDefaults() {}

func (*TCPSocketProbe) problem(string) *FieldError { return nil }

func (*TCPSocketProbe) validate(*violations, string) {}
