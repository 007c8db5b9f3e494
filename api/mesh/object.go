// Package mesh is the model of a mesh: Mesh, Dataplane and Service, as plain Go with JSON tags.
package mesh

import (
	"strings"
)

// ID names a proxy, a service or any other thing of one mesh: <mesh>/<name>.
type ID = string

// MakeID joins a mesh and a name. A mesh's name is a DNS label, so the first "/" always ends it.
func MakeID(meshName, name string) ID { return meshName + "/" + name }

// Kind is the type of an object, as in the field "type" of a file.
type Kind string

// The kinds of objects that Sonde reads.
const (
	KindMesh      Kind = "Mesh"
	KindDataplane Kind = "Dataplane"
	KindService   Kind = "Service"
)

// Kinds lists every kind, in the order in which they are shown.
func Kinds() []Kind { return []Kind{KindMesh, KindDataplane, KindService} }

// Key identifies an object. Mesh is empty for a Mesh itself.
type Key struct {
	Kind Kind
	Mesh string
	Name string
}

// Object is one Mesh, Dataplane or Service. Whoever hands an object on gives it away: it never changes afterwards.
type Object interface {
	Key() Key
	// SetDefaults fills what was left out, as Kubernetes' defaulting does. It is idempotent.
	SetDefaults()
	// Validate returns every violation as a FieldError, joined with errors.Join, in the order of the fields.
	// It expects defaults to be set.
	Validate() error
}

var _, _, _ Object = (*Mesh)(nil), (*Dataplane)(nil), (*Service)(nil)

// Meta names a Dataplane or a Service.
type Meta struct {
	// Mesh that the object belongs to, a DNS label. Default "default".
	Mesh string `json:"mesh,omitempty"`
	// Name, a DNS subdomain for a Dataplane.
	Name string `json:"name"`
	// Labels of the object. Sonde reads kuma.io/workload.
	Labels map[string]string `json:"labels,omitempty"`
}

// ID is <mesh>/<name>.
func (m Meta) ID() ID { return MakeID(m.Mesh, m.Name) }

// Protocol is what an inbound or a service speaks, the value of the tag kuma.io/protocol.
type Protocol string

// The protocols. ProtocolTCP is the default.
const (
	ProtocolTCP   Protocol = "tcp"
	ProtocolHTTP  Protocol = "http"
	ProtocolHTTP2 Protocol = "http2"
	ProtocolGRPC  Protocol = "grpc"
)

// Protocols lists every protocol that Sonde knows.
func Protocols() []Protocol {
	return []Protocol{ProtocolTCP, ProtocolHTTP, ProtocolHTTP2, ProtocolGRPC}
}

// IsHTTP says whether Envoy reads the requests (and does not only carry bytes).
func (p Protocol) IsHTTP() bool { return p != ProtocolTCP }

// Tags of an inbound or outbound, such as kuma.io/service.
type Tags map[string]string

// Service is the value of kuma.io/service, "" if there is none.
func (t Tags) Service() string { return t[TagService] }

// Protocol is the value of kuma.io/protocol, by default tcp.
func (t Tags) Protocol() Protocol {
	if p := t[TagProtocol]; p != "" {
		return Protocol(p)
	}
	return ProtocolTCP
}

// Health is what the owner of an endpoint says about it.
type Health struct {
	// Ready is whether the endpoint may get new traffic. Absent means ready.
	Ready *bool `json:"ready,omitempty"`
}

// IsReady reads an absent Health, or an absent field, as ready.
func (h *Health) IsReady() bool { return h == nil || h.Ready == nil || *h.Ready }

// SplitID is the reverse of MakeID.
func SplitID(id ID) (meshName, name string) {
	meshName, name, _ = strings.Cut(id, "/")
	return meshName, name
}
