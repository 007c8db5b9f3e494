package admission_test

import (
	"context"
	"encoding/pem"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	webhookclient "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/certificate"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/webhook"
)

// newClient starts a TLS server in a bubble, and returns the API server's client for it.
func newClient(t *testing.T, o webhook.ServerOptions) *rest.RESTClient {
	t.Helper()
	const address = "10.0.0.1:5682"
	config, _ := certificate.Server(t, "sonde-cp")
	o.TLS = config
	s, err := webhook.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	network := virtual.NewNetwork()
	l, err := network.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	clients, err := webhookclient.NewClientManager([]schema.GroupVersion{admissionv1.SchemeGroupVersion}, admissionv1.AddToScheme)
	if err != nil {
		t.Fatal(err)
	}
	clients.SetAuthenticationInfoResolver(&webhookclient.AuthenticationInfoResolverDelegator{ClientConfigForFunc: func(string) (*rest.Config, error) {
		return &rest.Config{Dial: func(ctx context.Context, kind, _ string) (net.Conn, error) {
			return network.DialFrom("10.0.0.2")(ctx, kind, address)
		}}, nil
	}})
	clients.SetServiceResolver(webhookclient.NewDefaultServiceResolver())
	client, err := clients.HookClient(webhookclient.ClientConfig{
		Name: "inject.sonde.dev", URL: "https://sonde-cp" + webhook.PathInject,
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: config.Certificates[0].Certificate[0]}),
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// The API server's client retries within its timeout while the control plane has not read a namespace yet.
func TestClientOfTheAPIServerAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		client := newClient(t, webhook.ServerOptions{
			Namespace: func(_ context.Context, name string) (webhook.Namespace, error) {
				if asked.Add(1) == 1 {
					return webhook.Namespace{}, errors.New("not found")
				}
				return webhook.Namespace{Name: name, Labels: map[string]string{ownKey: "enabled"}}, nil
			},
			Meshes:     func(context.Context, string) ([]string, error) { return []string{"default"}, nil },
			Mode:       func(string) mesh.MTLSMode { return "" },
			InUse:      func(string) (int, error) { return 0, nil },
			PodExists:  func(string, string) (bool, error) { return false, nil },
			ServiceIPs: func(string, string) ([]string, error) { return nil, nil },
		})
		question := &admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{
			UID: "u-1", Namespace: "shop", Operation: admissionv1.Create, Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"},
			Object: runtime.RawExtension{Raw: []byte(`{"metadata":{"generateName":"web-"},"spec":{"containers":[{"name":"app"}]}}`)},
		}}
		var answer admissionv1.AdmissionReview
		if err := client.Post().Body(question).Do(t.Context()).Into(&answer); err != nil {
			t.Fatal(err)
		}
		if n := asked.Load(); n != 2 {
			t.Errorf("the API server has asked %d times, want 2", n)
		}
		r := answer.Response
		if r == nil || r.UID != "u-1" || !r.Allowed || !strings.Contains(string(r.Patch), `"kuma-sidecar"`) {
			t.Errorf("answer %+v", r)
		}
	})
}
