package probe_test

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func TestAnswers(t *testing.T) {
	tests := map[string]struct {
		handler http.HandlerFunc // nil: the port is closed
		want    string
	}{
		"the handler":   {http.NotFound, ""},
		"somebody else": {func(http.ResponseWriter, *http.Request) {}, "status 200 OK, want 404"},
		"closed port":   {nil, "connection refused"},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			port := pod.closedPort()
			if tc.handler != nil {
				port = pod.web(tc.handler, nil)
			}
			err := probe.Answers(t.Context(), netip.AddrPortFrom(localhost, uint16(port)), pod.dial)
			if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Answers() = %v, want %q", err, tc.want)
			}
		})
	}
}

// The kubelet's liveness probe of the agent itself succeeds whenever the agent answers. No other request gets this
// answer.
func TestAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		p := get(pod.closedPort(), "/live")
		address := pod.serve(probe.Options{Table: mesh.ProbeTable{p}})
		for _, tc := range []struct{ path, id, want string }{
			{mesh.PathAlive, mesh.ProbeAlive, "success"},
			{mesh.PathAlive, "", "failure"},
			{mesh.PathAlive, "other", "failure"},
			{mesh.PathAlive + "?", mesh.ProbeAlive, "failure"},
			{"/other", mesh.ProbeAlive, "failure"},
		} {
			if verdict, text := pod.probe(address, tc.path, tc.id); verdict != tc.want {
				t.Errorf("%s of %q: %s %q, want %s", tc.path, tc.id, verdict, text, tc.want)
			}
		}
	})
}
