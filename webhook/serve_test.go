package webhook_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/testing/certificate"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/webhook"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Addresses of a server, an API server and a pod. The certificate is for the name in serverURL.
const (
	serverURL = "https://webhook"
	serverAt  = "10.0.0.1:443"
	apiServer = "10.0.0.2"
	somePod   = "10.0.0.3"
)

// serve starts a server with TLS. It returns its network, a client at apiServer that trusts it, and a function that
// stops it and returns the result of Serve.
func serve(t *testing.T, o webhook.ServerOptions) (n *virtual.Network, client *http.Client, end func() error) {
	t.Helper()
	config, roots := certificate.Server(t, "webhook")
	o.TLS, n = config, virtual.NewNetwork()
	l, err := n.Listen(t.Context(), "tcp", serverAt)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return n.DialFrom(apiServer)(ctx, network, serverAt)
		},
	}
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
	return n, &http.Client{Transport: transport}, end
}

// send sends the creation of a pod.
func send(t *testing.T, client *http.Client, body []byte) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, serverURL+webhook.PathInject, bytes.NewReader(body))
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
	synctest.Test(t, func(t *testing.T) {
		n, client, _ := serve(t, enabled().options())
		answer, text := send(t, client, podReview("shop", []byte(`{"spec":{"containers":[{"name":"app"}]}}`)))
		if answer.StatusCode != http.StatusOK || answer.ProtoMajor != 2 || answer.TLS.Version != tls.VersionTLS13 {
			t.Errorf("%s %s: %s", answer.Proto, answer.Status, text)
		}
		c := dial(t, n, apiServer)
		if err := tls.Client(c, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}).HandshakeContext(t.Context()); err == nil {
			t.Error("the server speaks TLS 1.1")
		}
	})
}

// A running request gets its response although the server stops.
func TestServeEndsGracefully(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := enabled().options()
		begun, answerIt := make(chan struct{}), make(chan struct{})
		o.Namespace = func(context.Context, string) (webhook.Namespace, error) {
			close(begun)
			<-answerIt
			return webhook.Namespace{}, nil
		}
		n, client, end := serve(t, o)
		answered := make(chan int, 1)
		go func() {
			answer, _ := send(t, client, podReview("shop", []byte(`{"spec":{"containers":[{"name":"app"}]}}`)))
			answered <- answer.StatusCode
		}()
		<-begun
		ended := make(chan error, 1)
		go func() { ended <- end() }()
		synctest.Wait()
		if _, err := n.DialFrom(apiServer)(t.Context(), "tcp", serverAt); err == nil {
			t.Error("the server goes on")
		}
		close(answerIt)
		if status := <-answered; status != http.StatusOK {
			t.Errorf("status %d, want 200", status)
		}
		if err := <-ended; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
}

// TestServeAnswersWhileConnectionsAreHeld has a pod that opens more connections than the limit, without requests.
func TestServeAnswersWhileConnectionsAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, client, _ := serve(t, enabled().options())
		client.Timeout = 5 * time.Second // shorter than the server's handshake timeout
		for range 600 {
			dial(t, n, somePod)
		}
		answer, text := send(t, client, podReview("shop", []byte(`{"spec":{"containers":[{"name":"app"}]}}`)))
		if answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", answer.Status, text)
		}
	})
}

func TestServeOnABrokenListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := virtual.NewNetwork().Listen(t.Context(), "tcp", serverAt)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := newServer(t, enabled().options()).Serve(t.Context(), l); err == nil {
			t.Error("Serve() = nil")
		}
	})
}
