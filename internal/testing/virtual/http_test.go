package virtual

import (
	"crypto/tls"
	"io"
	"net/http"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/certificate"
)

func TestServeHTTP(t *testing.T) {
	for scheme, withTLS := range map[string]bool{"http": false, "https": true} {
		Run(t, scheme, func(t *testing.T) {
			var secured *tls.Config
			transport := &http.Transport{}
			if withTLS {
				server, roots := certificate.Server(t, "api")
				secured, transport.TLSClientConfig = server, &tls.Config{RootCAs: roots}
			}
			transport.DialContext = ServeHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host) }), secured)
			answer, err := (&http.Client{Transport: transport}).Get(scheme + "://api/")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = answer.Body.Close() }()
			if got, err := io.ReadAll(answer.Body); string(got) != "api" || err != nil {
				t.Errorf("ReadAll() = %q, %v", got, err)
			}
		})
	}
}
