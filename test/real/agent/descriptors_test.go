package agent

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestFewDescriptors gives an agent a low limit of open files, and opens more silent connections than the limit at
// each of its ports. The kubelet still gets the application's verdicts.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	var fails atomic.Bool
	app := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if fails.Load() {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	cp := newControlPlane(t, bootstrap(t, ports{}), "per-port-probes")
	cp.Start()
	free := must.FreeAddresses(t, 5)
	virtual, lb, metrics, web, held := free[0], free[1], free[2], free[3], free[4]
	p := &program{t: t}
	p.cmd, p.admin = command(t, cp, "--virtual-probes-port="+portOf(t, virtual), "--lb-health-port="+portOf(t, lb), "--metrics-addr="+metrics)
	limited := exec.CommandContext(t.Context(), "/bin/sh", append([]string{"-c", `ulimit -n 256 && exec "$0" "$@"`}, p.cmd.Args...)...)
	limited.Env = append(limited.Environ(), probeEnv(t, portOf(t, app))...)
	p.cmd = limited
	p.run()
	p.waitReady()
	p.waitLogged(`"limit of open files is low, ports accept fewer connections"`)
	cp.SendProbes(&agentv1.Probes{
		Http: web, Paths: []*agentv1.ProbePath{{Path: "/x", Asked: "127.0.0.1:80", Application: app, ApplicationPath: "/"}},
		Ports: []*agentv1.ProbePort{{Address: held, Application: app}},
	})
	waitPort(t, held, true)
	waitPort(t, web, true)
	for _, at := range []string{virtual, p.admin, lb, metrics, web, held} {
		must.Silent(t, 300, at)
	}
	virtualURL := fmt.Sprintf("http://%s/%s/", virtual, portOf(t, app))
	for _, url := range []string{
		virtualURL, "http://" + web + "/x", "http://" + p.admin + "/livez", "http://" + p.admin + "/readyz", "http://" + lb + "/livez", "http://" + lb + "/healthz", "http://" + metrics + "/metrics",
	} {
		if code, body := ask(t, url); code != http.StatusOK {
			t.Errorf("%s is answered %d %q", url, code, body)
		}
	}
	waitPort(t, held, true)
	fails.Store(true)
	for _, url := range []string{virtualURL, "http://" + web + "/x"} {
		if code, body := ask(t, url); code == 0 || code < 400 || !strings.Contains(body, "418") {
			t.Errorf("%s is answered %d %q, want that the application fails", url, code, body)
		}
	}
}
