package mesh

// Mesh is a set of proxies and services that trust one certificate authority.
type Mesh struct {
	// Name is a DNS label: it is part of the mesh's trust domain.
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	Spec   MeshSpec          `json:"spec"`
}

// MeshSpec is the spec of a Mesh.
type MeshSpec struct { //nolint:revive // as DataplaneSpec and ServiceSpec, and the CRD
	// MTLS is absent in a mesh without mTLS.
	MTLS *MTLS `json:"mtls,omitempty"`
}

// MTLS has the certificate authorities of a mesh, of which one may be enabled.
type MTLS struct {
	// EnabledBackend is the name of one of Backends; empty means that mTLS is off.
	EnabledBackend string    `json:"enabledBackend,omitempty"`
	Backends       []Backend `json:"backends,omitempty"`
}

// MTLSMode says what an inbound listener accepts.
type MTLSMode string

// ModeStrict accepts only mTLS; ModePermissive accepts plain text, too.
const (
	ModeStrict     MTLSMode = "STRICT"
	ModePermissive MTLSMode = "PERMISSIVE"
)

// BackendBuiltin is the only type of certificate authority: one of the control plane itself.
const BackendBuiltin = "builtin"

// Backend is one certificate authority of a mesh.
type Backend struct {
	Name string `json:"name"`
	// Type is always "builtin".
	Type string `json:"type"`
	// Mode is STRICT (default) or PERMISSIVE.
	Mode   MTLSMode     `json:"mode,omitempty"`
	DPCert *DPCert      `json:"dpCert,omitempty"`
	Conf   *BuiltinConf `json:"conf,omitempty"`
}

// DPCert describes the certificates of proxies.
type DPCert struct {
	Rotation *Rotation `json:"rotation,omitempty"`
}

// Rotation of proxies' certificates.
type Rotation struct {
	// Expiration is a certificate's validity. Default 24h. It is renewed at two thirds.
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

// Mode returns the mode of the enabled backend, "" where mTLS is off.
func (m *Mesh) Mode() MTLSMode {
	if b := m.Backend(); b != nil {
		return b.Mode
	}
	return ""
}

// Backend returns the enabled backend, nil where mTLS is off.
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
