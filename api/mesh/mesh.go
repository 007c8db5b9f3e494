package mesh

import (
	"fmt"
	"time"
)

// Mesh is a set of proxies and services that trust one certificate authority.
type Mesh struct {
	// Name is a DNS label: it is part of the mesh's trust domain.
	Name string `json:"name"`
	// Labels have no effect.
	Labels map[string]string `json:"labels,omitempty"`
	Spec   MeshSpec          `json:"spec"`
	// Recorded means that the Mesh object was lost, and Spec is its last content.
	Recorded bool `json:"-"`
}

// MeshSpec is the spec of a Mesh.
type MeshSpec struct { //nolint:revive // like DataplaneSpec and ServiceSpec, and the CRD
	// MTLS is absent in a mesh without mTLS.
	MTLS *MTLS `json:"mtls,omitempty"`
	// Networking configures what applications can reach outside the mesh.
	Networking *MeshNetworking `json:"networking,omitempty"`
}

// MeshNetworking configures the connections of a mesh's applications.
type MeshNetworking struct { //nolint:revive // Networking is a Dataplane's
	// Outbound configures destinations outside the mesh.
	Outbound *MeshOutbound `json:"outbound,omitempty"`
}

// MeshOutbound configures connections of redirected applications to destinations that are not services of the mesh.
type MeshOutbound struct { //nolint:revive // Outbound is a Dataplane's
	// Passthrough is whether connections to destinations outside the mesh pass through Envoy, which otherwise closes
	// them. Default true.
	Passthrough *bool `json:"passthrough,omitempty"`
}

// MTLS has the certificate authorities of a mesh, one of which may be enabled.
type MTLS struct {
	// EnabledBackend is the name of one of Backends; empty means that mTLS is off.
	EnabledBackend string `json:"enabledBackend,omitempty"`
	// Backends are the certificate authorities.
	// +kubebuilder:validation:MaxItems=100
	Backends []Backend `json:"backends,omitempty"`
}

// MTLSMode is what an inbound listener accepts.
type MTLSMode string

// ModeStrict accepts only mTLS; ModePermissive also accepts plaintext.
const (
	ModeStrict     MTLSMode = "STRICT"
	ModePermissive MTLSMode = "PERMISSIVE"
)

// BackendBuiltin is the only type of certificate authority, part of the control plane.
const BackendBuiltin = "builtin"

// Backend is one certificate authority of a mesh.
type Backend struct {
	// Name of the backend, for mtls.enabledBackend.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Type is always "builtin".
	Type string `json:"type"`
	// Mode is STRICT (default) or PERMISSIVE.
	Mode   MTLSMode `json:"mode,omitempty"`
	DPCert *DPCert  `json:"dpCert,omitempty"`
	// Conf configures the certificate authority.
	Conf *BuiltinConf `json:"conf,omitempty"`
}

// DPCert describes the certificates of proxies.
type DPCert struct {
	Rotation *Rotation `json:"rotation,omitempty"`
}

// Rotation of proxies' certificates.
type Rotation struct {
	// Expiration is a certificate's validity. Default 24h. The agent renews its certificate after two thirds of it.
	Expiration Duration `json:"expiration,omitempty"`
}

// BuiltinConf configures a builtin certificate authority.
type BuiltinConf struct {
	CACert *CACert `json:"caCert,omitempty"`
}

// CACert describes the certificate of the authority itself.
type CACert struct {
	// Expiration is the validity of the CA's certificate. Default 10y.
	Expiration Duration `json:"expiration,omitempty"`
}

// Key implements Object.
func (m *Mesh) Key() Key { return Key{Kind: KindMesh, Name: m.Name} }

// EndedAfter is how long a mesh without Mesh and Dataplanes is kept.
const EndedAfter = 10 * time.Minute

// LostError explains that a Recorded mesh has no Mesh object.
func (m *Mesh) LostError() error {
	return fmt.Errorf("mesh %q: Mesh not found, keeping its recorded mode %s: apply a Mesh to change it; the mesh ends after %d minutes without Dataplanes",
		m.Name, m.Mode(), EndedAfter/time.Minute)
}

// Passthrough reports whether redirected applications reach destinations outside the mesh.
func (m *Mesh) Passthrough() bool {
	n := m.Spec.Networking
	return n == nil || n.Outbound == nil || n.Outbound.Passthrough == nil || *n.Outbound.Passthrough
}

// Mode returns the mode of the enabled backend, "" if mTLS is off.
func (m *Mesh) Mode() MTLSMode {
	if b := m.Backend(); b != nil {
		return b.Mode
	}
	return ""
}

// Backend returns the enabled backend, nil if mTLS is off.
func (m *Mesh) Backend() *Backend {
	if m.Spec.MTLS == nil || m.Spec.MTLS.EnabledBackend == "" {
		return nil
	}
	for i := range m.Spec.MTLS.Backends {
		if b := &m.Spec.MTLS.Backends[i]; b.Name == m.Spec.MTLS.EnabledBackend {
			return b
		}
	}
	return nil
}
