package kube

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/identity/ca"
	"github.com/sonde-mesh/sonde/test/must"
)

var loopback = []net.IP{net.IPv4(127, 0, 0, 1)}

// writeCertificate writes a webhook certificate that is valid for an hour, with a new CA, and returns the CA.
func writeCertificate(t *testing.T, directory string, from time.Time) []byte {
	t.Helper()
	authority, err := ca.New(&x509.Certificate{Subject: ca.Subject("test")}, from, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key := ca.NewKey()
	leaf, err := authority.Sign(&x509.Certificate{
		DNSNames: []string{"sonde-cp.sonde-system.svc"}, IPAddresses: loopback, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key.Public(), from, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	bundle, _ := authority.Encode()
	if err := errors.Join(
		os.WriteFile(filepath.Join(directory, "ca.crt"), bundle, 0o600),
		os.WriteFile(filepath.Join(directory, "tls.key"), ca.EncodeKey(key), 0o600),
		os.WriteFile(filepath.Join(directory, "tls.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw}), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	return bundle
}

// Another program renews the webhook's certificate, with another CA.
func TestWebhookCertificateOfSomebodyElse(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "certificate", map[string]string{mesh.LabelInjection: "enabled"})
	directory := t.TempDir()
	bundle := writeCertificate(t, directory, time.Now())
	p := startPlane(t, "a", func(o *controlplane.Options) {
		o.Kubernetes.WebhookConfiguration, o.Kubernetes.WebhookCertDir = configurationName, directory
	})
	installWebhook(t, client, p)
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	for range 2 {
		must.Poll(t, "the CA in the configuration", func(ctx context.Context) error {
			is, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, configurationName, metav1.GetOptions{})
			if err == nil && !bytes.Equal(is.Webhooks[0].ClientConfig.CABundle, bundle) {
				err = errors.New("the certificate is a different one")
			}
			return err
		})
		must.Poll(t, "an injected pod", func(ctx context.Context) error { // the API server may still use the old CA
			pod, err := client.CoreV1().Pods("certificate").Create(ctx, podOf("certificate", "web", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err == nil && !hasSidecar(pod) {
				err = errors.New("the pod has no sidecar")
			}
			return err
		})
		bundle = writeCertificate(t, directory, time.Now())
	}
}
