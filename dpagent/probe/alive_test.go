package probe_test

import (
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/dpagent/probe"
)

func TestAnswers(t *testing.T) {
	notFound, found := http.NotFoundHandler(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	tests := map[string]struct {
		handler http.Handler // nil: nobody listens
		want    string
	}{
		"the handler":   {notFound, ""},
		"somebody else": {found, "it answers 200 OK, want 404"},
		"nobody":        {nil, "connection refused"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			l := listen(t, "127.0.0.1")
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
			err := probe.Answers(t.Context(), l.Addr().(*net.TCPAddr).AddrPort())
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Answers() = %v, want %q", err, tc.want)
			}
		})
	}
}
