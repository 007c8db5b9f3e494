// Package mesh is the model of a mesh: Mesh, Dataplane, Service, MeshService and the probe table of a pod, as plain Go
// types with JSON tags, their defaults and validation, and the names in users' manifests.
//
// +kubebuilder:object:generate=true
package mesh

import (
	"maps"
	"strings"
)

// ID identifies a proxy or a service: <mesh>/<name>.
type ID = string

// MakeID returns the ID of a name in a mesh. The name of a mesh is a DNS label, so it always ends at the first "/".
func MakeID(meshName, name string) ID { return meshName + "/" + name }

// Kind is the kind of an object, in the field "type" of a file.
type Kind string

// The kinds of objects that Sonde reads.
const (
	KindMesh        Kind = "Mesh"
	KindDataplane   Kind = "Dataplane"
	KindService     Kind = "Service"
	KindMeshService Kind = "MeshService"
)

// Kinds lists the kinds in the order in which they are shown.
func Kinds() []Kind { return []Kind{KindMesh, KindDataplane, KindService, KindMeshService} }

// Key identifies an object. Mesh is empty for a Mesh itself.
type Key struct {
	Kind Kind
	Mesh string
	Name string
}

// Object is a Mesh, Dataplane, Service or MeshService. An object must not be modified after it was passed on.
//
// +kubebuilder:object:generate=false
type Object interface {
	Key() Key
	// SetDefaults sets the fields that were left out. It is idempotent.
	SetDefaults()
	// Validate returns all violations as FieldErrors, joined with errors.Join, in the order of the fields. The defaults
	// must be set.
	Validate() error
}

var _, _, _, _ Object = (*Mesh)(nil), (*Dataplane)(nil), (*Service)(nil), (*MeshService)(nil)

// Meta names a Dataplane, a Service or a MeshService.
type Meta struct {
	// Mesh that the object belongs to, a DNS label. Default "default".
	Mesh string `json:"mesh,omitempty"`
	// Name of the object. The name of a Dataplane is a DNS subdomain.
	Name string `json:"name"`
	// Labels of the object. Sonde reads kuma.io/workload and sonde.dev/node, and a MeshService selects Dataplanes by
	// any label.
	Labels map[string]string `json:"labels,omitempty"`
}

// ID returns <mesh>/<name>.
func (m Meta) ID() ID { return MakeID(m.Mesh, m.Name) }

// AllLabels returns the labels, and those that Kuma adds to each object: kuma.io/display-name, its name, and
// kuma.io/mesh.
func (m *Meta) AllLabels() map[string]string {
	all := map[string]string{labelDisplayName: m.Name, LabelMesh: m.Mesh}
	maps.Copy(all, m.Labels)
	return all
}

// hasLabels reports whether AllLabels has all of these.
func (m *Meta) hasLabels(want map[string]string) bool {
	all := m.AllLabels()
	for key, value := range want {
		if has, ok := all[key]; !ok || has != value {
			return false
		}
	}
	return true
}

// Protocol of an inbound or a service.
type Protocol string

// The protocols. ProtocolTCP is the default.
const (
	ProtocolTCP   Protocol = "tcp"
	ProtocolHTTP  Protocol = "http"
	ProtocolHTTP2 Protocol = "http2"
	ProtocolGRPC  Protocol = "grpc"
)

// Protocols lists the protocols.
func Protocols() []Protocol {
	return []Protocol{ProtocolTCP, ProtocolHTTP, ProtocolHTTP2, ProtocolGRPC}
}

// CommonProtocol returns a protocol that suits all of these, which may differ during a rollout: the same one if they
// are equal, http2 for a mix of http2 and grpc, else tcp. It is tcp for an empty list.
func CommonProtocol(all []Protocol) Protocol {
	if len(all) == 0 {
		return ProtocolTCP
	}
	common := all[0]
	for _, p := range all[1:] {
		switch {
		case p == common:
		case p.overHTTP2() && common.overHTTP2():
			common = ProtocolHTTP2
		default:
			return ProtocolTCP
		}
	}
	return common
}

func (p Protocol) overHTTP2() bool { return p == ProtocolHTTP2 || p == ProtocolGRPC }

// IsHTTP reports whether Envoy handles requests, not only bytes.
func (p Protocol) IsHTTP() bool { return p != ProtocolTCP }

// Tags of an inbound or outbound, such as kuma.io/service.
//
// +kubebuilder:validation:MaxProperties=32
type Tags map[string]string

// Service returns the value of kuma.io/service, "" without one.
func (t Tags) Service() string { return t[TagService] }

// Health is the health of an endpoint, as its owner declares it.
type Health struct {
	// Ready is whether the endpoint may get new traffic. Absent means ready.
	Ready *bool `json:"ready,omitempty"`
}

// IsReady reports whether the endpoint is ready. It is if Health or its field is absent.
func (h *Health) IsReady() bool { return h == nil || h.Ready == nil || *h.Ready }

// SplitID is the reverse of MakeID.
func SplitID(id ID) (meshName, name string) {
	meshName, name, _ = strings.Cut(id, "/")
	return meshName, name
}
