package faults

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// TestStrangersAsk requests resources and presents certificates, as anyone can who reaches the ports.
func TestStrangersAsk(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	must.Do(t, m.Put("other.yaml", strings.ReplaceAll(harness.MeshYAML("PERMISSIVE"), "name: default", "name: other")))
	proxies := must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a"}, harness.ProxyOptions{Name: "b-1", Service: "b"},
		harness.ProxyOptions{Name: "a-1", Service: "a", Mesh: "other"})
	mine, other := identityOf(t, proxies[0]), identityOf(t, proxies[2])
	inbounds := []tlsServer{{proxies[1].Inbound, mesh}, {proxies[2].Inbound, mesh}}
	t.Run("resources of another proxy", func(t *testing.T) {
		for node, want := range map[string]codes.Code{"default/a-1": codes.OK, "default/b-1": codes.PermissionDenied} {
			if got := status.Code(firstAnswer(t, m, mine, node)); got != want {
				t.Errorf("clusters of %s: the answer is %s, want %s", node, got, want)
			}
		}
	})
	t.Run("a certificate of another mesh at an inbound", func(t *testing.T) {
		for i, own := range []tls.Certificate{mine, other} {
			foreign := []tls.Certificate{other, mine}[i]
			if err := admits(t.Context(), inbounds[i], own); err != nil {
				t.Errorf("the certificate of its own mesh is refused: %v", err)
			}
			if err := admits(t.Context(), inbounds[i], foreign); !isRefusal(err) {
				t.Errorf("the connection ends with: %v, want a refusal", err)
			}
		}
	})
	t.Run("no certificate", func(t *testing.T) {
		for _, server := range inbounds {
			if err := admits(t.Context(), server, tls.Certificate{}); !isRefusal(err) {
				t.Errorf("the connection ends with: %v, want a refusal", err)
			}
		}
	})
	t.Run("a certificate of another control plane", func(t *testing.T) {
		stranger := newMesh(t, 0)
		theirs := must.Add(t, stranger, harness.ProxyOptions{Name: "a-1", Service: "a"})[0]
		for _, server := range append(inbounds, tlsServer{m.Agents, http2}) {
			if err := admits(t.Context(), server, identityOf(t, theirs)); !isRefusal(err) {
				t.Errorf("at %s the connection ends with: %v, want a refusal", server.at, err)
			}
		}
	})
	synced(t, proxies...)
}

// firstAnswer requests the clusters of a node with a certificate, and returns the error if the stream ends without a
// response. test/feature tests the other refusals.
func firstAnswer(t *testing.T, m *harness.Machine, identity tls.Certificate, node string) error {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(read(t, filepath.Join(m.StateDir(), "serving-ca.crt")))) {
		t.Fatal("the serving CA is no PEM")
	}
	config := &tls.Config{RootCAs: roots, ServerName: "sonde-cp.sonde.internal", Certificates: []tls.Certificate{identity}}
	conn, err := grpc.NewClient("passthrough:///"+m.Agents, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	must.Do(t, err)
	defer func() { _ = conn.Close() }()
	ctx := wait.Context(t)
	stream, err := envoysim.OpenWire(ctx, envoysim.Delta, conn)
	must.Do(t, err)
	must.Do(t, stream.Send(&envoysim.Request{Node: node, Type: resource.Cluster}))
	_, err = stream.Recv()
	return err
}

// TestStrangersJoin has agents join with tokens of other proxies, or expired tokens. Each agent logs the reason, gets
// nothing, and joins once it has a valid token.
func TestStrangersJoin(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	const life = time.Second
	tests := map[string]struct {
		token func(t *testing.T) string
		want  string
	}{
		"another": {
			func(t *testing.T) string { return makeToken(t, m, "--name=other", "--workload=a") }, "is for",
		},
		"another-workload": {
			func(t *testing.T) string { return makeToken(t, m, "--name=another-workload", "--workload=b") }, "workload",
		},
		"expired": {
			func(t *testing.T) string {
				token := makeToken(t, m, "--name=expired", "--workload=a", "--valid-for="+life.String())
				over := time.Now().Add(life + time.Second)
				must.Poll(t, "the token to expire", func(context.Context) error {
					if time.Now().Before(over) {
						return errors.New("the token is valid")
					}
					return nil
				})
				return token
			}, "expired",
		},
		"nonsense": {func(*testing.T) string { return "nonsense" }, "token"},
		"nothing":  {func(*testing.T) string { return "" }, "token"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := must.Prepare(t, m, harness.ProxyOptions{Name: name, Service: "a"})
			token := tc.token(t) // created before the Dataplane exists, because sondectl would then refuse another workload
			must.Do(t, errors.Join(p.Declare(), p.StartApp(t.Context()), p.SetToken(token), p.RunAgent()))
			must.Poll(t, "the agent to report why it does not join", func(ctx context.Context) error {
				_, err := m.Get(ctx, "http://"+p.Admin+"/readyz")
				if s := statusOf(err); s.Code != 503 || !strings.Contains(s.Body, tc.want) {
					return fmt.Errorf("its readiness is %w, want 503 with %q", err, tc.want)
				}
				return nil
			})
			must.Log(t, p.Agent, ", retrying")
			if name != "nothing" { // without a token, the agent does not try
				must.Log(t, m.ControlPlane, "join refused", fmt.Sprintf(`"mesh":"default","proxy":%q,"peer":"127.0.0.1"`, name))
			}
			if _, err := os.Stat(p.IdentityFile()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the agent has an identity: %v", err)
			}
			if pids, err := p.Processes(); err != nil || len(pids) > 0 {
				t.Errorf("processes %v, %v run: want no Envoy", pids, err)
			}
			if tc.want == "expired" { // one case is enough, because the agent retries every 5 s
				must.Do(t, p.MakeToken(t.Context()))
				must.Do(t, p.WaitReady(t.Context()))
			}
			p.Agent.Kill()
		})
	}
}

func makeToken(t *testing.T, m *harness.Machine, args ...string) string {
	t.Helper()
	token, err := m.Ctl(t.Context(), append([]string{"generate", "dataplane-token"}, args...)...)
	must.Do(t, err)
	return token
}
