package parity

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestRefusalsAreSeen lets Envoy refuse an answer and an upgrade: the agent must count them and report them to
// operators.
func TestRefusalsAreSeen(t *testing.T) {
	r := newRig(t, envoys[0], []*call{{app: odd}, {app: upgrades}})
	for _, s := range r.applications {
		client := get("/cl2")
		if s.application == upgrades {
			client = asks("GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: my-protocol\r\n\r\n")
		}
		if got := client(t.Context(), s.at[plain]); !strings.HasPrefix(got, "502") && !strings.HasPrefix(got, "403") {
			t.Fatalf("%s: got answer %s, want a refusal", s.name, got)
		}
	}
	has := func(text string, all ...string) error {
		for _, want := range all {
			if !strings.Contains(text, want) {
				return fmt.Errorf("%q is missing in %s", want, text)
			}
		}
		return nil
	}
	must.Poll(t, "operators to be told", func(ctx context.Context) error {
		text, err := r.machine.Ctl(ctx, "get", "proxies")
		if err != nil {
			return err
		}
		return has(text, "envoy rejects calls: answers of the application that HTTP clients accept and Envoy does not, inbound ",
			"envoy rejects calls: upgrades to protocols that Envoy does not support, inbound ")
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	text, err := harness.Get(t.Context(), client, "http://"+r.server.Admin+"/metrics")
	must.Do(t, err)
	if err := has(text, `sonde_dpagent_refused_total{cause="answers"} 1`, `sonde_dpagent_refused_total{cause="upgrades"} 1`); err != nil {
		t.Error(err)
	}
}
