package mesh

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Outbound is a local port at which the application reaches a service.
type Outbound struct {
	// Address is an IP address. Default 127.0.0.1.
	// +kubebuilder:validation:MaxLength=253
	Address string `json:"address,omitempty"`
	// Port at which the application connects to Address.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port uint32 `json:"port"`
	// Tags name the service by the tag kuma.io/service, unless BackendRef is set.
	Tags Tags `json:"tags,omitempty"`
	// BackendRef names a MeshService, instead of Tags.
	BackendRef *BackendRef `json:"backendRef,omitempty"`
}

// Service returns the name in the mesh of the service that the outbound reaches, see MeshServiceName for MeshServices.
func (o *Outbound) Service() string {
	if o.BackendRef != nil {
		return o.BackendRef.Service()
	}
	return o.Tags.Service()
}

// BackendRef names a port of a MeshService, by the name of the MeshService or by labels.
type BackendRef struct {
	// Kind is always "MeshService".
	Kind string `json:"kind"`
	// Name of the MeshService.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// Port is one of the MeshService's ports.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port uint32 `json:"port,omitempty"`
	// Labels of the MeshService, instead of Name. kuma.io/display-name is its name. If several match, the first by name
	// is used.
	// +kubebuilder:validation:MaxProperties=32
	Labels map[string]string `json:"labels,omitempty"`
}

// Service returns the name in the mesh of the service; with Labels it is a separate name, which no MeshService has.
func (r *BackendRef) Service() string {
	if len(r.Labels) == 0 {
		return MeshServiceName(r.Name, r.Port)
	}
	return MeshServiceName(Pairs(r.Labels), r.Port)
}

// Pairs returns labels or tags as key=value, sorted, with commas between them.
func Pairs(of map[string]string) string {
	all := make([]string, 0, len(of))
	for _, key := range slices.Sorted(maps.Keys(of)) {
		all = append(all, key+"="+of[key])
	}
	return strings.Join(all, ",")
}

// Selects reports whether a MeshService has the Labels. It need not have the port: a missing port does not select
// another MeshService.
func (r *BackendRef) Selects(s *MeshService) bool { return s.hasLabels(r.Labels) }

// Prefers reports whether the reference prefers a MeshService to another one, which may be nil. Of several with the
// Labels it prefers the first by name: files do not say which is the oldest.
func (r *BackendRef) Prefers(s, other *MeshService) bool {
	return r.Selects(s) && (other == nil || s.Name < other.Name)
}

// MeshServiceInfix is between the name of a MeshService and a port of it in the name of their service.
const MeshServiceInfix = "_msvc_"

// MeshServiceName returns the name in the mesh of the service of a MeshService port, like the end of Kuma's destination
// names. A service made from tags may have the name of the MeshService at the same time.
func MeshServiceName(name string, port uint32) string { //nolint:revive // of a MeshService
	return name + MeshServiceInfix + strconv.FormatUint(uint64(port), 10)
}
