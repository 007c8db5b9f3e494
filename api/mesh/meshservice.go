package mesh

import (
	"cmp"
	"encoding/json"
	"errors"
	"strconv"
)

// MeshService makes services of the inbounds of selected Dataplanes: one for each of its ports, which outbounds reach
// by backendRef.
type MeshService struct { //nolint:revive // Kuma's name of the kind; Service is another one
	Meta
	Spec MeshServiceSpec `json:"spec"`
}

// MeshServiceSpec is the spec of a MeshService.
type MeshServiceSpec struct { //nolint:revive // like DataplaneSpec and ServiceSpec
	// Selector selects the Dataplanes of the mesh that are endpoints.
	Selector DataplaneSelector `json:"selector"`
	// Ports of the MeshService; each is a service.
	Ports []MeshServicePort `json:"ports,omitempty"`
}

// DataplaneSelector selects Dataplanes in exactly one way.
type DataplaneSelector struct {
	// DataplaneLabels selects Dataplanes by their labels.
	DataplaneLabels *LabelSelector `json:"dataplaneLabels,omitempty"`
	// DataplaneTags selects Dataplanes with an inbound that has all of these tags.
	DataplaneTags Tags `json:"dataplaneTags,omitempty"`
	// DataplaneRef selects the Dataplane with this name.
	DataplaneRef *DataplaneRef `json:"dataplaneRef,omitempty"`
}

// String returns the selector in human-readable form.
func (s DataplaneSelector) String() string {
	switch {
	case s.DataplaneRef != nil:
		return "dataplaneRef " + s.DataplaneRef.Name
	case s.DataplaneLabels != nil:
		return "dataplaneLabels " + Pairs(s.DataplaneLabels.MatchLabels)
	}
	return "dataplaneTags " + Pairs(s.DataplaneTags)
}

// LabelSelector selects objects by their labels. kuma.io/display-name is the name of an object.
type LabelSelector struct {
	// MatchLabels are labels; the Dataplane must have all of them.
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
}

// DataplaneRef names a Dataplane.
type DataplaneRef struct {
	// Name of the Dataplane.
	Name string `json:"name,omitempty"`
}

// MeshServicePort is one port of a MeshService.
type MeshServicePort struct { //nolint:revive // of a MeshService
	// Name has no effect.
	Name string `json:"name,omitempty"`
	// Port that a backendRef of an outbound names.
	Port uint32 `json:"port"`
	// TargetPort is the port or the name of the inbounds behind this port. Default Port.
	TargetPort TargetPort `json:"targetPort,omitempty"`
	// AppProtocol is the protocol of clients: tcp (default), http, http2 or grpc.
	AppProtocol Protocol `json:"appProtocol,omitempty"`
}

// TargetPort is the number or the name of a port, as in Kubernetes.
type TargetPort string

// UnmarshalJSON implements json.Unmarshaler: the number may be unquoted.
func (p *TargetPort) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, (*string)(p)) == nil {
		return nil
	}
	if n, err := strconv.ParseUint(string(data), 10, 16); err != nil || n == 0 {
		return errors.New(AllowedPort)
	}
	*p = TargetPort(data)
	return nil
}

// Selects reports whether an inbound answers at the port. Source: Kuma's MatchInboundWithMeshServicePort; the default
// is Kubernetes'.
func (p *MeshServicePort) Selects(in *Inbound) bool {
	number := strconv.FormatUint(uint64(in.Port), 10)
	switch p.TargetPort {
	case "":
		return in.Port == p.Port
	case TargetPort(number):
		return true
	}
	return TargetPort(in.Name) == p.TargetPort
}

// Selects reports whether it selects a Dataplane of the mesh.
func (s *DataplaneSelector) Selects(d *Dataplane) bool {
	switch {
	case s.DataplaneRef != nil:
		return d.Name == s.DataplaneRef.Name
	case s.DataplaneLabels != nil:
		return d.hasLabels(s.DataplaneLabels.MatchLabels)
	}
	for i := range d.Spec.Networking.Inbound {
		if d.Spec.Networking.Inbound[i].Tags.contain(s.DataplaneTags) {
			return true
		}
	}
	return false
}

func (t Tags) contain(want Tags) bool {
	for key, value := range want {
		if has, ok := t[key]; !ok || has != value {
			return false
		}
	}
	return true
}

// Key implements Object.
func (s *MeshService) Key() Key { return Key{Kind: KindMeshService, Mesh: s.Mesh, Name: s.Name} }

// SetDefaults implements Object.
func (s *MeshService) SetDefaults() {
	s.Mesh = cmp.Or(s.Mesh, DefaultMesh)
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].AppProtocol = cmp.Or(s.Spec.Ports[i].AppProtocol, ProtocolTCP)
	}
}
