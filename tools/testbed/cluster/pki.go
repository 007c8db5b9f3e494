package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"time"
)

// certificateLife of all certificates: a cluster is for tests, and made anew each time.
const certificateLife = 365 * 24 * time.Hour

// authority signs the certificates of a cluster.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// subject is who a certificate is for. Every certificate is good for clients and servers.
type subject struct {
	name, group string
	dns         []string
	addresses   []netip.Addr
}

// writePKI makes the keys of the cluster: its CA, the key of service accounts, and a certificate for each component.
func (c *Cluster) writePKI(nodes int, families []family) error {
	ca, err := newAuthority()
	if err != nil {
		return err
	}
	if err := c.writeKeyPair("ca", ca.certificate.Raw, ca.key); err != nil {
		return err
	}
	accounts, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := c.writeKey("service-accounts", accounts); err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&accounts.PublicKey)
	if err != nil {
		return err
	}
	if err := writeFile(c.accountsPublicKey(),
		pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644); err != nil {
		return err
	}
	for file, s := range subjects(nodes, families) {
		raw, key, err := ca.issue(s)
		if err != nil {
			return fmt.Errorf("issue the certificate of %s: %w", file, err)
		}
		if err := c.writeKeyPair(file, raw, key); err != nil {
			return err
		}
	}
	return nil
}

// subjects maps the name of each certificate's file to its subject.
// Source: kubernetes.io/docs/setup/best-practices/certificates (users and groups).
func subjects(nodes int, families []family) map[string]subject {
	server := subject{
		name: "kube-apiserver",
		dns: []string{
			"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local",
		},
	}
	for _, f := range families {
		server.addresses = append(server.addresses, f.apiService, f.nodeAddress(1))
	}
	all := map[string]subject{
		"apiserver":          server,
		"admin":              {name: "admin", group: "system:masters"},
		"kubelet-client":     {name: "kube-apiserver-kubelet-client", group: "system:masters"},
		"controller-manager": {name: "system:kube-controller-manager"},
		"scheduler":          {name: "system:kube-scheduler"},
		"proxy":              {name: "system:kube-proxy"},
	}
	for node := 1; node <= nodes; node++ {
		s := subject{name: "system:node:" + nodeName(node), group: "system:nodes", dns: []string{nodeName(node)}}
		for _, f := range families {
			s.addresses = append(s.addresses, f.nodeAddress(node))
		}
		all[nodeName(node)] = s
	}
	return all
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "sonde-testbed"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	raw, err := sign(template, template, key, key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(raw)
	return &authority{certificate: certificate, key: key}, err
}

func (a *authority) issue(s subject) (raw []byte, key *ecdsa.PrivateKey, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: s.name}, DNSNames: s.dns, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if s.group != "" {
		template.Subject.Organization = []string{s.group}
	}
	for _, a := range s.addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(a.AsSlice()))
	}
	raw, err = sign(template, a.certificate, key, a.key)
	return raw, key, err
}

// sign signs a certificate for key, with its serial number and life filled in.
func sign(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(certificateLife)
	return x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
}

func (c *Cluster) certificateFile(name string) string { return c.path("pki", name+".crt") }

func (c *Cluster) keyFile(name string) string { return c.path("pki", name+".key") }

// accountsPublicKey is the file of the key that verifies the tokens of service accounts.
func (c *Cluster) accountsPublicKey() string { return c.path("pki", "service-accounts.pub") }

func (c *Cluster) writeKeyPair(name string, raw []byte, key *ecdsa.PrivateKey) error {
	if err := c.writeKey(name, key); err != nil {
		return err
	}
	return writeFile(c.certificateFile(name), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), 0o644)
}

func (c *Cluster) writeKey(name string, key *ecdsa.PrivateKey) error {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return writeFile(c.keyFile(name), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600)
}

// kubeconfig is the file with which the owner of that certificate calls the API server.
func (c *Cluster) kubeconfig(certificate string) string { return c.path(certificate + ".kubeconfig") }

func (c *Cluster) writeKubeconfig(certificate string, families []family) error {
	return c.writeJSON(c.kubeconfig(certificate), map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "testbed",
		"contexts": []any{
			map[string]any{"name": "testbed", "context": map[string]any{"cluster": "testbed", "user": certificate}},
		},
		"clusters": []any{map[string]any{"name": "testbed", "cluster": map[string]any{
			"server": "https://" + netip.AddrPortFrom(families[0].nodeAddress(1), portAPI).String(), "certificate-authority": c.certificateFile("ca"),
		}}},
		"users": []any{map[string]any{"name": certificate, "user": map[string]any{
			"client-certificate": c.certificateFile(certificate), "client-key": c.keyFile(certificate),
		}}},
	})
}
