package watchdog

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sonde-mesh/sonde/test/apiserver"
)

// proxy is a proxy to the API server.
type proxy struct {
	address string
	ca      []byte
	token   string

	mu sync.Mutex
	// refuse responds to a request instead of the API server if it returns true. passed is called for
	// each response.
	refuse func(http.ResponseWriter, *http.Request) bool
	passed func(*http.Request)
}

// newProxy listens at an address of the host.
func newProxy(t *testing.T, host string) *proxy { return newProxyOf(t, cluster, host) }

// newProxyOf is newProxy for another API server.
func newProxyOf(t *testing.T, c *apiserver.Cluster, host string) *proxy {
	t.Helper()
	target, err := url.Parse(c.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	pemOfCA, err := os.ReadFile(c.Config.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	roots.AppendCertsFromPEM(pemOfCA)
	p := &proxy{token: c.Config.BearerToken}
	to := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}},
		FlushInterval: -1, // for watches
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		refuse, passed := p.refuse, p.passed
		p.mu.Unlock()
		if refuse != nil && refuse(w, r) {
			return
		}
		to.ServeHTTP(w, r)
		if passed != nil {
			passed(r)
		}
	}))
	if server.Listener, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err != nil {
		t.Fatal(err)
	}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	p.address = server.URL
	p.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return p
}

func (p *proxy) set(refuse func(http.ResponseWriter, *http.Request) bool, passed func(*http.Request)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse, p.passed = refuse, passed
}

// kubeconfig returns a kubeconfig that uses the proxy.
func (p *proxy) kubeconfig(t *testing.T) []byte {
	t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: p.address, CertificateAuthorityData: p.ca, TLSServerName: "example.com"}
	c.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: p.token}
	c.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	c.CurrentContext = "x"
	text, err := clientcmd.Write(*c)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// file writes that kubeconfig.
func (p *proxy) file(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, p.kubeconfig(t), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// secret writes a Secret with a kubeconfig.
func (s *scene) secret(kubeconfig []byte) {
	s.t.Helper()
	secrets := s.client.CoreV1().Secrets(s.name)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Data: map[string][]byte{"kubeconfig": kubeconfig}}
	_, err := secrets.Create(s.t.Context(), secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = secrets.Update(s.t.Context(), secret, metav1.UpdateOptions{})
	}
	if err != nil {
		s.t.Fatal(err)
	}
}
