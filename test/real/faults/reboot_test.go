package faults

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestReboot restarts a host long after the agent's token has expired: the agent joins with the certificate in its
// work directory. If the certificate is no longer accepted, the agent joins with a new token.
func TestReboot(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	b := must.Prepare(t, m, harness.ProxyOptions{Name: "b-1", Service: "b"})
	must.Do(t, b.Declare())
	must.Do(t, b.StartApp(t.Context()))
	a := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}})[0]
	const life = 10 * time.Second
	token, stderr, err := m.CtlBoth(t.Context(), "generate", "dataplane-token", "--name=b-1", "--valid-for="+life.String())
	must.Do(t, err)
	expired := time.Now().Add(life)
	if strings.Count(token, ".") != 2 || strings.Contains(stderr, strings.TrimSpace(token)) || !strings.Contains(stderr, "the token expires at 2") {
		t.Errorf("sondectl prints %q on stdout and %q on stderr, want a token and its expiry", token, stderr)
	}
	must.Do(t, b.SetToken(token))
	must.Do(t, b.RunAgent())
	must.Do(t, b.WaitReady(t.Context()))
	endpoints(t, a, "b", b)
	key := read(t, b.IdentityFile())
	if end := tokenEnd(t, m, b); end.Before(expired.Add(-life)) || end.After(expired.Add(time.Second)) {
		t.Errorf("the agent's metric has the token expiry %s, want about %s", end, expired)
	}
	must.Do(t, b.KillAll(t.Context()))
	must.Poll(t, "the end of the token", func(context.Context) error {
		if time.Now().Before(expired.Add(time.Second)) {
			return errors.New("the certificate is valid")
		}
		return nil
	})

	must.Do(t, b.StartApp(t.Context()))
	must.Do(t, b.RunAgent())
	must.Do(t, b.WaitReady(t.Context()))
	must.Log(t, b.Agent, "dataplane token has expired")
	must.Log(t, m.ControlPlane, `"proxy":"b-1","by":"certificate"`)
	if read(t, b.IdentityFile()) == key {
		t.Error("the agent keeps its old key")
	}
	synced(t, b)
	calls(t, a, "b")

	must.Do(t, b.KillAll(t.Context()))
	b.Labels = map[string]string{"kuma.io/workload": "another"}
	must.Do(t, b.Declare())
	must.Log(t, m.ControlPlane, `"name":"b-1","change":"changed"`)
	must.Do(t, b.StartApp(t.Context()))
	must.Do(t, b.RunAgent())
	must.Log(t, b.Agent, "control plane rejects this proxy")
	_, err = m.Get(t.Context(), "http://"+b.Admin+"/readyz")
	if s := statusOf(err); s.Code != 503 || !strings.Contains(s.Body, "exp: expired") || !strings.Contains(s.Body, "the certificate is for") {
		t.Errorf("its readiness is %d %s, want 503 and both reasons", s.Code, s.Body)
	}
	must.Do(t, b.MakeToken(t.Context()))
	must.Do(t, b.WaitReady(t.Context()))
	must.Log(t, b.Agent, "control plane rejected the certificate in the work directory, joined with the token")
	synced(t, b)
	calls(t, a, "b")
}

// tokenEnd returns the expiry of the token from the agent's metrics.
func tokenEnd(t *testing.T, m *harness.Machine, p *harness.Proxy) time.Time {
	t.Helper()
	text, err := m.Get(t.Context(), "http://"+p.Admin+"/metrics")
	must.Do(t, err)
	all, err := harness.ParseMetrics(strings.NewReader(text))
	must.Do(t, err)
	return time.Unix(int64(all["sonde_dpagent_token_not_after_seconds"]), 0)
}
