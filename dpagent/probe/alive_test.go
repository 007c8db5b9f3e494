package probe_test

import (
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/dpagent/probe"
)

func TestAnswers(t *testing.T) {
	notFound, found := http.NotFoundHandler(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	tests := map[string]struct {
		network string
		handler http.Handler // nil: nobody listens
		want    string
	}{
		"over TCP":         {"tcp", notFound, ""},
		"over a socket":    {"unix", notFound, ""},
		"somebody else":    {"tcp", found, "it answers 200 OK, want 404"},
		"nobody":           {"tcp", nil, "connection refused"},
		"nobody, a socket": {"unix", nil, "no such file"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			address := "127.0.0.1:0"
			if tc.network == "unix" {
				address = filepath.Join(t.TempDir(), "probes.sock")
			}
			l, err := net.Listen(tc.network, address)
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Handler: tc.handler}
			served := make(chan struct{})
			go func() {
				defer close(served)
				_ = server.Serve(l) // it says that it was closed
			}()
			stop := func() {
				_ = server.Close()
				_ = l.Close() // if it was closed before it was served
				<-served
			}
			defer stop()
			if tc.handler == nil {
				stop()
			}
			err = probe.Answers(t.Context(), l.Addr())
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Answers() = %v, want %q", err, tc.want)
			}
		})
	}
}
