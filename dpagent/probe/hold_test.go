package probe_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// TestHold checks the responses to probes that the agent holds back or cannot check, with each hold mode.
func TestHold(t *testing.T) {
	const cannot = "the agent cannot check"
	for name, tc := range map[string]struct {
		kind    mesh.ProbeType
		guarded bool
		app     http.HandlerFunc // nil for an agent that cannot check
		want    string           // verdict with mesh.HoldWarning; with mesh.HoldErrored it is errored
		text    string
	}{
		"guarded, fails":              {mesh.ProbeLiveness, true, teapot, "warning", "HELD by Sonde: not a reason to restart yet: HTTP probe failed with statuscode: 418"},
		"guarded, cannot be checked":  {mesh.ProbeLiveness, true, nil, "warning", "HELD by Sonde: " + cannot},
		"guarded, body is cut":        {mesh.ProbeLiveness, true, cut, "warning", "HELD by Sonde: "},
		"liveness, cannot be checked": {mesh.ProbeLiveness, false, nil, "warning", "HELD by Sonde: " + cannot},
		// A kubelet that counts errored checks must count those that an application causes. A warning would make a pod Ready,
		// or started, without a check.
		"liveness, body is cut":        {mesh.ProbeLiveness, false, cut, "errored", ""},
		"readiness, cannot be checked": {mesh.ProbeReadiness, false, nil, "errored", cannot},
		"startup, cannot be checked":   {mesh.ProbeStartup, false, nil, "errored", cannot},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			pod := newPod(t)
			p := get(1, "/x")
			o := probe.Options{Guarded: &grants{}}
			dial := pod.dial
			if tc.app != nil {
				p = get(pod.web(tc.app, nil), "/x")
			} else {
				dial = func(context.Context, string, string) (net.Conn, error) { return nil, syscall.EMFILE }
			}
			p.Type, p.Guarded, p.FailureThreshold, p.PeriodSeconds = tc.kind, tc.guarded, 3, 10
			o.Table, o.PodIP, o.Dial = mesh.ProbeTable{p}, localhost, dial
			l := pod.listen(localhost.String())
			o.Port = port(l)
			h, err := probe.New(o)
			if err != nil {
				t.Fatal(err)
			}
			pod.run(t.Context(), h, l)
			at := netip.MustParseAddrPort(l.Addr().String())
			if verdict, text := pod.probe(at.String(), p.VirtualPath(), p.ID); verdict != "errored" {
				t.Errorf("by default: %s %q, want errored", verdict, text)
			}
			h.SetHold(mesh.HoldWarning)
			synctest.Wait()
			verdict, text := pod.probe(at.String(), p.VirtualPath(), p.ID)
			if verdict != tc.want || !strings.Contains(text, tc.text) {
				t.Errorf("with warnings: %s %q, want %s %q", verdict, text, tc.want, tc.text)
			}
			h.SetHold(mesh.HoldErrored)
			if verdict, text := pod.probe(at.String(), p.VirtualPath(), p.ID); verdict != "errored" {
				t.Errorf("and back: %s %q, want errored", verdict, text)
			}
		})
	}
}

func teapot(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }

// cut is an application whose response is Errored for the kubelet.
func cut(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "100")
	_, _ = io.WriteString(w, "cut")
}

// Other callers see a redirect with the reason, and never a 200.
func TestHeldAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod(t)
		p := get(pod.web(teapot, nil), "/x")
		p.Type, p.Guarded, p.FailureThreshold, p.PeriodSeconds = mesh.ProbeLiveness, true, 3, 10
		address := pod.serve(probe.Options{Table: mesh.ProbeTable{p}, Guarded: &grants{}, Hold: mesh.HoldWarning})
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+p.VirtualPath(), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{DialContext: pod.dial, DisableKeepAlives: true}
		answer, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		body, err := io.ReadAll(answer.Body)
		to, parsed := url.Parse(answer.Header.Get("Location"))
		if err != nil || parsed != nil || answer.StatusCode != http.StatusFound || to.Hostname() != "held.sonde.invalid" || !strings.HasPrefix(string(body), "HELD by Sonde: ") {
			t.Errorf("%s to %v, %q, %v", answer.Status, to, body, err)
		}
	})
}
