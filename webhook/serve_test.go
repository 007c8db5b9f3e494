package webhook_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve starts a server with TLS. It returns its URL, a client that trusts it, and a function that ends it and returns what Serve
// returned.
func serve(t testing.TB, o webhook.ServerOptions) (url string, client *http.Client, end func() error) {
	t.Helper()
	lender := httptest.NewTLSServer(http.NotFoundHandler()) // has a certificate for 127.0.0.1
	o.TLS = &tls.Config{Certificates: lender.TLS.Certificates}
	roots := x509.NewCertPool()
	roots.AddCert(lender.Certificate())
	lender.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	ended := false
	end = func() error {
		if ended {
			return nil
		}
		ended = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := end(); err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	return "https://" + l.Addr().String(), &http.Client{Transport: transport, Timeout: time.Minute}, end
}

func send(t testing.TB, client *http.Client, url string, body []byte) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(r)
	if err != nil {
		t.Error(err)
		return &http.Response{}, ""
	}
	defer answer.Body.Close() //nolint:errcheck // read to its end
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Error(err)
	}
	return answer, string(text)
}

func TestServe(t *testing.T) {
	url, client, _ := serve(t, enabled().options())
	answer, text := send(t, client, url+webhook.PathInject, podReview("shop", []byte(`{"spec":{"containers":[{"name":"app"}]}}`)))
	if answer.StatusCode != http.StatusOK || answer.ProtoMajor != 2 || answer.TLS.Version != tls.VersionTLS13 {
		t.Errorf("%s %s: %s", answer.Proto, answer.Status, text)
	}
	if _, err := tls.Dial("tcp", url[len("https://"):], &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("the server speaks TLS 1.1")
	}
}

// A request that has begun when the server is told to end gets its answer.
func TestServeEndsGracefully(t *testing.T) {
	o := enabled().options()
	begun, answerIt := make(chan struct{}), make(chan struct{})
	o.Namespace = func(context.Context, string) (webhook.Namespace, error) {
		close(begun)
		<-answerIt
		return webhook.Namespace{}, nil
	}
	url, client, end := serve(t, o)
	answered := make(chan int, 1)
	go func() {
		answer, _ := send(t, client, url+webhook.PathInject, podReview("shop", []byte(`{"spec":{"containers":[{"name":"app"}]}}`)))
		answered <- answer.StatusCode
	}()
	<-begun
	ended := make(chan error, 1)
	go func() { ended <- end() }()
	for deadline := time.Now().Add(30 * time.Second); ; {
		c, err := net.Dial("tcp", url[len("https://"):])
		if err != nil {
			break // it has begun to end
		}
		_ = c.Close()
		if time.Now().After(deadline) {
			t.Fatal("the server goes on")
		}
	}
	close(answerIt)
	if status := <-answered; status != http.StatusOK {
		t.Errorf("status %d, want 200", status)
	}
	if err := <-ended; err != nil {
		t.Errorf("Serve() = %v", err)
	}
}

// TestServeAnswersWhileConnectionsAreHeld has a pod that opens more connections than there may be, and asks nothing.
func TestServeAnswersWhileConnectionsAreHeld(t *testing.T) {
	url, client, _ := serve(t, enabled().options())
	client.Timeout = 5 * time.Second // the server waits for a handshake for longer
	pod := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	for range 300 {
		c, err := pod.DialContext(t.Context(), "tcp", url[len("https://"):])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() //nolint:errcheck,gocritic // all are held until the end
	}
	answer, text := send(t, client, url+webhook.PathInject, podReview("shop", []byte(`{"spec":{"containers":[{"name":"app"}]}}`)))
	if answer.StatusCode != http.StatusOK {
		t.Errorf("%s: %s", answer.Status, text)
	}
}

func TestServeOnABrokenListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := newServer(t, enabled().options()).Serve(t.Context(), l); err == nil {
		t.Error("Serve() = nil")
	}
}
