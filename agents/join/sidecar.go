package join

import (
	"cmp"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Limits of the memory of agent and Envoy. A value outside them is a mistake.
const (
	minMemory = 16 << 20
	maxMemory = 1 << 50
)

// sidecarOf returns the settings in a request, with defaults. The error is a gRPC status.
func sidecarOf(r *agentv1.JoinRequest) (Sidecar, error) {
	if at := r.GetControlPlaneAddress(); !isAddress(at) {
		return Sidecar{}, status.Errorf(codes.InvalidArgument,
			"control_plane_address: %q: must be host:port, the port from 1 to 65535", call.Shorten(at))
	}
	drainTime, err := drainTimeOf(r)
	if err != nil {
		return Sidecar{}, err
	}
	memory := cmp.Or(r.GetMemoryBytes(), uint64(mesh.DefaultSidecarMemory))
	if memory < minMemory || memory > maxMemory {
		return Sidecar{}, status.Errorf(codes.InvalidArgument, "memory_bytes: %d: must be from %d to %d, or 0 for %d",
			memory, minMemory, uint64(maxMemory), uint64(mesh.DefaultSidecarMemory))
	}
	return Sidecar{
		ControlPlane: r.GetControlPlaneAddress(), DrainTime: drainTime, Memory: memory,
		ServingCAFile: slices.Contains(r.GetFeatures(), agentv1.FeatureServingCA),
		Records:       slices.Contains(r.GetFeatures(), agentv1.FeaturePlaintext),
	}, nil
}

// drainTimeOf returns the drain time in a request, or the default. The error is a gRPC status.
func drainTimeOf(r *agentv1.JoinRequest) (time.Duration, error) {
	if r.GetDrainTime() == nil {
		return mesh.DefaultDrainTime, nil
	}
	if d := r.GetDrainTime().AsDuration(); r.GetDrainTime().IsValid() && d >= 0 && d <= mesh.MaxDrainTime {
		return d, nil
	}
	return 0, status.Errorf(codes.InvalidArgument, "drain_time: %s: must be from 0s to %s", r.GetDrainTime().AsDuration(),
		mesh.MaxDrainTime)
}

// isAddress reports whether Envoy can connect to address, host:port.
func isAddress(address string) bool {
	host, port, err := net.SplitHostPort(address)
	number, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || number == 0 || net.JoinHostPort(host, port) != address {
		return false
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Zone() == ""
	}
	return len(host) <= maxHost && hostName.MatchString(host)
}

// maxHost is the maximum length of a DNS name in bytes (RFC 1035 §2.3.4).
const maxHost = 253

// hostName matches DNS names, but no IPv6 addresses.
var hostName = regexp.MustCompile(`^[a-zA-Z0-9_]([-a-zA-Z0-9_.]*[a-zA-Z0-9_.])?$`)
