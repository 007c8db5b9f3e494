package generator

import (
	"net/netip"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Values of a socket option on Linux, see mesh.SocketPriority.
const (
	solSocket  = 1
	soPriority = 12
)

func socketAddress(at netip.AddrPort) *corev3.Address {
	return tcpAddress(at.Addr().String(), uint32(at.Port()))
}

func tcpAddress(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func pipeAddress(path string, mode uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path, Mode: mode}}}
}

// bypassRedirection makes a cluster connect directly to the application.
func bypassRedirection() *corev3.BindConfig {
	return &corev3.BindConfig{SocketOptions: []*corev3.SocketOption{{
		Description: "SO_PRIORITY: not to be redirected",
		Level:       solSocket,
		Name:        soPriority,
		Value:       &corev3.SocketOption_IntValue{IntValue: mesh.SocketPriority},
		State:       corev3.SocketOption_STATE_PREBIND,
	}}}
}

// tcpKeepalive detects a dead peer within a minute. No idle timeout would detect it.
func tcpKeepalive() *corev3.TcpKeepalive {
	return &corev3.TcpKeepalive{
		KeepaliveTime:     wrapperspb.UInt32(30),
		KeepaliveInterval: wrapperspb.UInt32(10),
		KeepaliveProbes:   wrapperspb.UInt32(3),
	}
}
