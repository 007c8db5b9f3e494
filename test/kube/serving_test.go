package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
)

// shows returns why a client with these CAs does not accept what a port of the control plane shows.
func shows(ctx context.Context, address string, cas []byte) error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(cas) {
		return fmt.Errorf("no CA in %q", cas)
	}
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: mesh.ServingName}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// bundle returns the CAs by which the API server verifies the webhook.
func bundle(ctx context.Context, client kubernetes.Interface) ([]byte, error) {
	is, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, configurationName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return is.Webhooks[0].ClientConfig.CABundle, nil
}

// The serving CA is rotated by two replicas, while pods are made: the API server calls the webhook in each step, and what the Secret for
// operators has is good in each.
func TestServingCARotation(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "rotation", map[string]string{mesh.LabelInjection: "enabled"})
	withWebhook := func(o *controlplane.Options) { o.Kubernetes.WebhookConfiguration = configurationName }
	a, b := startPlane(t, "a", withWebhook), startPlane(t, "b", withWebhook)
	installWebhook(t, client, a)
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	injected := func(ctx context.Context) (ca string, err error) {
		pod, err := client.CoreV1().Pods("rotation").Create(ctx, podOf("rotation", "web", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && !hasSidecar(pod) {
			err = errors.New("the pod has no sidecar")
		}
		if err != nil {
			return "", err
		}
		return pod.Annotations[mesh.AnnotationControlPlaneCA], nil
	}
	poll(t, "an injected pod", func(ctx context.Context) error {
		_, err := injected(ctx)
		return err
	})
	old := secret(t, client, "sonde-serving-ca.crt")

	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var pods, handshakes atomic.Int64
	running.Go(func() {
		for ctx.Err() == nil {
			if _, err := injected(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("a pod is refused: %v", err)
			}
			pods.Add(1)
		}
	})
	running.Go(func() { // the API server keeps its connections, and another one makes new ones
		for ctx.Err() == nil {
			cas, err := bundle(ctx, client)
			if err == nil {
				err = shows(ctx, a.webhook, cas)
			}
			if err != nil && ctx.Err() == nil {
				t.Errorf("an API server does not accept the webhook: %v", err)
			}
			handshakes.Add(1)
		}
	})
	admin, authorised := a.adminClient(t, client)
	if _, err := admin.RotateServingCA(authorised, &adminv1.RotateServingCARequest{}); err != nil {
		t.Fatal(err)
	}
	status := func() *adminv1.Rotation {
		r, err := admin.GetServingRotation(authorised, &adminv1.GetServingRotationRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	poll(t, "the pause after the first step", func(context.Context) error {
		if r := status(); !r.GetPaused() {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	both := secret(t, client, "sonde-serving-ca.crt")
	if n := strings.Count(string(both), "BEGIN CERTIFICATE"); n != 2 {
		t.Errorf("sonde-serving-ca.crt has %d certificates in the first step, want both", n)
	}
	if ca, err := injected(t.Context()); err != nil || ca != string(both) {
		t.Errorf("a new pod gets %q, %v, want both CAs", ca, err)
	}
	for _, plane := range []*plane{a, b} {
		if err := shows(t.Context(), plane.agents, old); err != nil {
			t.Errorf("who has the old CA alone does not connect in the first step: %v", err)
		}
	}

	if _, err := admin.RotateServingCA(authorised, &adminv1.RotateServingCARequest{Proceed: true}); err != nil {
		t.Fatal(err)
	}
	poll(t, "the end of the rotation", func(ctx context.Context) error {
		for _, plane := range []*plane{a, b} {
			if err := errors.Join(shows(ctx, plane.agents, both), shows(ctx, plane.webhook, both)); err != nil {
				t.Errorf("who has both CAs does not connect: %v", err)
			}
		}
		if r := status(); r.GetStep() != adminv1.Rotation_IDLE {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	after := secret(t, client, "sonde-serving-ca.crt")
	for _, plane := range []*plane{a, b} {
		if err := shows(t.Context(), plane.agents, after); err != nil {
			t.Errorf("who has the new CA alone does not connect: %v", err)
		}
		if err := shows(t.Context(), plane.agents, old); err == nil {
			t.Error("who has the old CA alone connects after the rotation")
		}
	}
	if ca, err := injected(t.Context()); err != nil || ca != string(after) {
		t.Errorf("a new pod gets %q, %v, want the new CA", ca, err)
	}
	poll(t, "the new CA alone in the configuration", func(ctx context.Context) error {
		cas, err := bundle(ctx, client)
		if err == nil && string(cas) != string(after) {
			err = errors.New("it has others")
		}
		return err
	})
	time.Sleep(time.Second) // the pods go on for a while
	cancel()
	running.Wait()
	t.Logf("%d pods and %d handshakes", pods.Load(), handshakes.Load())
}
