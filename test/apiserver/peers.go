package apiserver

import (
	"net"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/controller"
	"github.com/sonde-mesh/sonde/controller/replicas"
)

// PeerSlice returns the EndpointSlice by which replicas of the control plane find a replica on this machine, as of
// the headless Service. Each replica has its own slice, because each has its own port here.
func PeerSlice(t testing.TB, replica string, port int32) *discoveryv1.EndpointSlice {
	t.Helper()
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "peers-" + replica, Labels: map[string]string{discoveryv1.LabelServiceName: controller.PeersService}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{
			Name: new(replicas.Port), Port: new(port), Protocol: new(corev1.ProtocolTCP),
		}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{OwnAddress(t)}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: replica},
		}},
	}
}

// OwnAddress returns an IPv4 address of this machine other than loopback: EndpointSlices must not have loopback
// addresses, and a watchdog refuses them.
func OwnAddress(t testing.TB) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Is4() &&
			prefix.Addr().IsGlobalUnicast() {
			return prefix.Addr().String()
		}
	}
	t.Fatalf("this machine has only loopback IPv4 addresses: %v", addresses)
	return ""
}
