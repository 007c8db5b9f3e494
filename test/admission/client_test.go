package admission_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	webhookclient "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/webhook"
)

// newClient starts a server with TLS, and returns the API server's client for it.
func newClient(t *testing.T, o webhook.ServerOptions) *rest.RESTClient {
	t.Helper()
	lender := httptest.NewTLSServer(http.NotFoundHandler()) // has a certificate for 127.0.0.1
	o.TLS = &tls.Config{Certificates: lender.TLS.Certificates}
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: lender.Certificate().Raw})
	lender.Close()
	s, err := webhook.NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
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
	resolver, err := webhookclient.NewDefaultAuthenticationInfoResolver("")
	if err != nil {
		t.Fatal(err)
	}
	clients.SetAuthenticationInfoResolver(resolver)
	clients.SetServiceResolver(webhookclient.NewDefaultServiceResolver())
	client, err := clients.HookClient(webhookclient.ClientConfig{
		Name: "inject.sonde.dev", URL: "https://" + l.Addr().String() + webhook.PathInject, CABundle: bundle,
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// The API server's client asks again within its timeout while the control plane does not know a namespace yet.
func TestClientOfTheAPIServerAsksAgain(t *testing.T) {
	var asked atomic.Int32
	client := newClient(t, webhook.ServerOptions{
		Namespace: func(_ context.Context, name string) (webhook.Namespace, error) {
			if asked.Add(1) == 1 {
				return webhook.Namespace{}, errors.New("not found")
			}
			return webhook.Namespace{Name: name, Labels: map[string]string{ownKey: "enabled"}}, nil
		},
		Meshes:     func(context.Context, string) ([]string, error) { return []string{"default"}, nil },
		Strict:     func(string) bool { return false },
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
}
