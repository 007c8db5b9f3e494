package mesh

import (
	"cmp"
	"time"
)

// Defaults of a Backend.
const (
	DefaultCertValidity = 24 * time.Hour
	DefaultCAValidity   = 10 * year
)

// loopback is the default address of an outbound and of the application behind an inbound.
const loopback = "127.0.0.1"

// ImpliedMesh returns a mesh without Mesh object and without mTLS, such as the one named DefaultMesh if there is no
// Mesh object at all.
func ImpliedMesh(name string) *Mesh { return &Mesh{Name: name} }

// SetDefaults implements Object.
func (m *Mesh) SetDefaults() {
	if m.Spec.MTLS == nil {
		return
	}
	for i := range m.Spec.MTLS.Backends {
		m.Spec.MTLS.Backends[i].setDefaults()
	}
}

func (b *Backend) setDefaults() {
	b.Mode = cmp.Or(b.Mode, ModeStrict)
	b.DPCert = cmp.Or(b.DPCert, &DPCert{})
	b.DPCert.Rotation = cmp.Or(b.DPCert.Rotation, &Rotation{})
	b.DPCert.Rotation.Expiration = cmp.Or(b.DPCert.Rotation.Expiration, Duration(DefaultCertValidity))
	b.Conf = cmp.Or(b.Conf, &BuiltinConf{})
	b.Conf.CACert = cmp.Or(b.Conf.CACert, &CACert{})
	b.Conf.CACert.Expiration = cmp.Or(b.Conf.CACert.Expiration, Duration(DefaultCAValidity))
}

// CertValidity returns the validity of proxies' certificates. It is the default for a nil Backend: proxies of a mesh
// without mutual TLS have certificates, too.
func (b *Backend) CertValidity() time.Duration {
	if b == nil || b.DPCert == nil || b.DPCert.Rotation == nil || b.DPCert.Rotation.Expiration == 0 {
		return DefaultCertValidity
	}
	return b.DPCert.Rotation.Expiration.Std()
}

// CAValidity returns the validity of the CA's certificate, for a nil Backend the default.
func (b *Backend) CAValidity() time.Duration {
	if b == nil || b.Conf == nil || b.Conf.CACert == nil || b.Conf.CACert.Expiration == 0 {
		return DefaultCAValidity
	}
	return b.Conf.CACert.Expiration.Std()
}

// SetDefaults implements Object.
func (d *Dataplane) SetDefaults() {
	d.Mesh = cmp.Or(d.Mesh, DefaultMesh)
	net := &d.Spec.Networking
	serviceAddress := loopback
	if tp := net.TransparentProxying; tp != nil {
		tp.RedirectPortInbound = cmp.Or(tp.RedirectPortInbound, PortRedirectIn)
		tp.RedirectPortOutbound = cmp.Or(tp.RedirectPortOutbound, PortRedirectOut)
		serviceAddress = ""
	}
	for i := range net.Inbound {
		in := &net.Inbound[i]
		in.Address = cmp.Or(in.Address, net.Address)
		in.ServicePort = cmp.Or(in.ServicePort, in.Port)
		in.ServiceAddress = cmp.Or(in.ServiceAddress, serviceAddress, in.Address)
		if in.ServiceProbe != nil {
			in.ServiceProbe.setDefaults(in.ServicePort)
		}
	}
	for i := range net.Outbound {
		net.Outbound[i].Address = cmp.Or(net.Outbound[i].Address, loopback)
	}
	if mode, err := ParseProbesMode(d.Labels[AnnotationVirtualProbesMode]); err == nil {
		d.ProbesMode = mode
	}
	for i := range d.Spec.TCPProbes {
		p := &d.Spec.TCPProbes[i]
		p.InboundPort = cmp.Or(p.InboundPort, p.Port)
	}
}

// SetDefaults implements Object.
func (s *Service) SetDefaults() { s.Mesh = cmp.Or(s.Mesh, DefaultMesh) }
