package kube

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// page returns the body of a page of a control plane, whatever its status.
func (p *plane) page(ctx context.Context, path string) (string, error) {
	body, err := p.get(ctx, path)
	if other, ok := errors.AsType[*harness.StatusError](err); ok {
		return other.Body + "\n", nil
	}
	return body, err
}

// says waits until a page contains a text.
func (p *plane) says(t *testing.T, path, text string) {
	t.Helper()
	must.Poll(t, fmt.Sprintf("%s that says %q", path, text), func(ctx context.Context) error {
		body, err := p.page(ctx, path)
		if err == nil && !strings.Contains(body, text) {
			err = fmt.Errorf("it says %q", body)
		}
		return err
	})
}

// A control plane without its API server stays live and ready, and reports the failure.
func TestAPIServerGoesAway(t *testing.T) {
	deleteMeshes(t)
	address, kubeconfig := must.FreeAddresses(t, 1)[0], filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(kubeconfig, "https://"+address, cluster.Config.BearerToken); err != nil {
		t.Fatal(err)
	}
	stop := forward(t, address)
	p := startPlane(t, "a", func(o *controlplane.Options) {
		o.Kubernetes.Kubeconfig, o.Kubernetes.WebhookConfiguration = kubeconfig, configurationName
	})
	p.says(t, "/readyz?verbose", "\n[+]store ok\n")
	p.says(t, "/metrics", "\nsonde_store_staleness_seconds 0\n")
	stop()
	p.says(t, "/readyz?verbose", "\n[!]store warning: unreachable for ")
	for began := time.Now(); time.Since(began) < 20*time.Second; <-time.After(200 * time.Millisecond) { // longer than any result is kept
		for _, path := range []string{"/livez", "/readyz", "/healthz"} {
			if err := p.healthy(t.Context(), path); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
		}
	}
	if body, err := p.page(t.Context(), "/metrics"); err != nil || strings.Contains(body, "\nsonde_store_staleness_seconds 0\n") {
		t.Errorf("the store is not stale, %v", err)
	}
	forward(t, address)
	p.says(t, "/readyz?verbose", "\n[+]store ok\n")
	p.says(t, "/metrics", "\nsonde_store_staleness_seconds 0\n")
}

// The program that renews the webhook's certificate may fail to renew it.
func TestExpiredWebhookCertificate(t *testing.T) {
	deleteMeshes(t)
	directory := t.TempDir()
	writeCertificate(t, directory, time.Now())
	p := startPlane(t, "a", func(o *controlplane.Options) { o.Kubernetes.WebhookCertDir = directory })
	writeCertificate(t, directory, time.Now().Add(-2*time.Hour))
	p.says(t, "/readyz", "[-]webhook-certificate failed: not valid now: ")
	if err := p.healthy(t.Context(), "/livez"); err != nil {
		t.Errorf("the control plane is not live: %v", err)
	}
	writeCertificate(t, directory, time.Now())
	must.Poll(t, "its readiness", p.ready)
}
