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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/test/must"
)

// shows returns an error unless a client with these CAs accepts the certificate of a port of the
// control plane.
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

// bundle returns the CAs with which the API server verifies the webhook.
func bundle(ctx context.Context, client kubernetes.Interface) ([]byte, error) {
	is, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Get(ctx, configurationName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return is.Webhooks[0].ClientConfig.CABundle, nil
}

// clients call the webhook all the time, in two ways.
type clients struct {
	*testing.T
	kubernetes.Interface
	pods, handshakes, calls atomic.Int64
}

// inject returns the CA that a new pod gets.
func (c *clients) inject(ctx context.Context) (ca string, err error) {
	pod, err := c.CoreV1().Pods("rotation").Create(ctx, podOf("rotation", "web", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil && !hasSidecar(pod) {
		err = errors.New("the pod has no sidecar")
	}
	if err != nil {
		return "", err
	}
	return pod.Annotations[mesh.AnnotationControlPlaneCA], nil
}

// gets checks the CA that a new pod gets.
func (c *clients) gets(want []byte) {
	c.Helper()
	if ca, err := c.inject(c.Context()); err != nil || ca != string(want) {
		c.Errorf("a new pod gets %q, %v, want %q", ca, err, want)
	}
}

// start calls the webhook of a plane until ctx ends: over kept connections, as the API server does, and over new
// connections, as another API server would. It also connects as sondectl does.
func (c *clients) start(ctx context.Context, running *sync.WaitGroup, p *plane) {
	repeat := func(what string, count *atomic.Int64, call func() error) {
		for ctx.Err() == nil {
			if err := call(); err != nil && ctx.Err() == nil {
				c.Errorf("%s: %v", what, err)
			}
			count.Add(1)
		}
	}
	running.Go(func() {
		repeat("a pod is refused", &c.pods, func() error {
			_, err := c.inject(ctx)
			return err
		})
	})
	running.Go(func() {
		repeat("an API server does not accept the webhook", &c.handshakes, func() error {
			cas, err := bundle(ctx, c)
			if err != nil {
				return err
			}
			return shows(ctx, p.webhook, cas)
		})
	})
	running.Go(func() {
		repeat("a client with the published CAs does not accept the control plane", &c.calls, func() error {
			cas, err := published(ctx, c)
			if err != nil {
				return err
			}
			return shows(ctx, p.admin, []byte(cas))
		})
	})
}

// connect checks whether clients with these CAs can connect to each replica.
func (c *clients) connect(cas []byte, want bool, planes ...*plane) {
	c.Helper()
	for _, p := range planes {
		for _, address := range []string{p.agents, p.admin, p.webhook} {
			if err := shows(c.Context(), address, cas); (err == nil) != want {
				c.Errorf("a client with %d CAs connects to %s: %v, want %v", strings.Count(string(cas), "BEGIN"), address, err, want)
			}
		}
	}
}

// Two replicas rotate the serving CA while pods are created. In each step, the API server can call the webhook, and
// the Secret for operators is valid. A watching sondectl continues.
func TestServingCARotation(t *testing.T) {
	deleteMeshes(t)
	c := &clients{T: t, Interface: newClient(t)}
	namespace(t, c, "rotation", map[string]string{mesh.LabelInjection: "enabled"})
	withWebhook := func(o *controlplane.Options) { o.Kubernetes.WebhookConfiguration = configurationName }
	a, b := startPlane(t, "a", withWebhook), startPlane(t, "b", withWebhook)
	installWebhook(t, c, a)
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	must.Poll(t, "an injected pod", func(ctx context.Context) error {
		_, err := c.inject(ctx)
		return err
	})
	installSondectl(t, c)
	startKubelet(t, c).run(t, systemNamespace, "sonde-cp-a", "sonde", a)
	watched, problems := newPerson(t, c, "rotates", systemNamespace).watches("get", "meshes", "-o", "name")
	says(t, "the first list of sondectl", watched, "mesh/default\n")
	old := secret(t, c, "sonde-serving-ca.crt")
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer func() { cancel(); running.Wait() }()
	c.start(ctx, &running, a)

	admin, authorised := a.adminClient(t, c)
	rotate := func(proceed bool) {
		t.Helper()
		// The rotation is forced, because other tests leave pods without connected agents.
		if _, err := admin.RotateServingCA(authorised, &adminv1.RotateServingCARequest{Force: true, Proceed: proceed}); err != nil {
			t.Fatal(err)
		}
	}
	until := func(what string, reached func(*adminv1.Rotation) bool) {
		t.Helper()
		must.Poll(t, what, func(context.Context) error {
			r, err := admin.GetServingRotation(authorised, &adminv1.GetServingRotationRequest{})
			if err == nil && !reached(r) {
				err = fmt.Errorf("%v", r)
			}
			return err
		})
	}
	rotate(false)
	until("the pause after the first step", (*adminv1.Rotation).GetPaused)
	both := secret(t, c, "sonde-serving-ca.crt")
	if n := strings.Count(string(both), "BEGIN CERTIFICATE"); n != 2 {
		t.Errorf("sonde-serving-ca.crt has %d certificates in the first step, want both", n)
	}
	c.gets(both)
	c.connect(old, true, a, b)

	rotate(true)
	until("the end of the rotation", func(r *adminv1.Rotation) bool {
		c.connect(both, true, a, b)
		return r.GetStep() == adminv1.Rotation_IDLE
	})
	after := secret(t, c, "sonde-serving-ca.crt")
	c.connect(after, true, a, b)
	c.connect(old, false, a, b)
	c.gets(after)
	must.Poll(t, "the new CA alone in the configuration", func(ctx context.Context) error {
		cas, err := bundle(ctx, c)
		if err == nil && string(cas) != string(after) {
			err = errors.New("the CAs differ")
		}
		return err
	})
	must.Poll(t, "the new CA alone in the ConfigMap", func(ctx context.Context) error {
		cas, err := published(ctx, c)
		if err == nil && cas != string(after) {
			err = errors.New("the CAs differ")
		}
		return err
	})
	apply(t, "", "meshes", `{apiVersion: sonde.dev/v1alpha1, kind: Mesh, metadata: {name: green}}`)
	says(t, "what sondectl --watch has of the control plane with the new CA", watched, "mesh/green\n")
	t.Logf("%d pods, %d handshakes, and %d with the published CAs; stderr of sondectl: %q", c.pods.Load(), c.handshakes.Load(), c.calls.Load(), problems.String())
}
