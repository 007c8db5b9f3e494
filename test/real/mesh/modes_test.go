package mesh

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

const (
	identityA = "spiffe://default.sonde.internal/workload/a"
	identityB = "spiffe://default.sonde.internal/workload/b"
	// headerPeer names the caller of a request over mTLS.
	headerPeer = "x-forwarded-client-cert"
	forgery    = "By=spiffe://forged/b;URI=spiffe://forged/a"
)

// pair is A, the client, and B with an inbound for each service.
type pair struct {
	machine *harness.Machine
	a, b    *harness.Proxy
	inbound map[string]inbound
}

// newPair starts A and B. The first inbound determines B's workload.
func newPair(t *testing.T, m *harness.Machine, inbounds ...inbound) *pair {
	t.Helper()
	p := &pair{machine: m, inbound: map[string]inbound{}}
	var services []string
	for _, i := range inbounds {
		p.inbound[i.service] = i
		services = append(services, i.service)
	}
	var err error
	p.b, err = m.Prepare(harness.ProxyOptions{Name: "b-1", Service: "main", Labels: map[string]string{"kuma.io/workload": "b"}})
	must.Do(t, err)
	must.Do(t, m.Put("b-1.yaml", withInbounds(t, p.b, inbounds...)))
	must.Do(t, p.b.StartApp(t.Context()))
	must.Do(t, p.b.StartAgent(t.Context()))
	p.a = must.Add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: services})[0]
	must.Do(t, p.b.WaitReady(t.Context()))
	for _, i := range inbounds {
		must.HaveEndpoints(t, p.a, i.service, i.at)
	}
	return p
}

// handshakes counts the TLS handshakes of B's listener for a service.
func (p *pair) handshakes(t *testing.T, service string) int64 {
	t.Helper()
	return stat(t, p.b, fmt.Sprintf("listener.inbound_%d.ssl.handshake", must.Port(t, p.inbound[service].at)))
}

// applicationProtocols has a call for each protocol of an inbound. The call returns the peer's identity as the
// application received it.
var applicationProtocols = map[string]func(ctx context.Context, at string) (peer string, err error){
	"http":  func(ctx context.Context, at string) (string, error) { return askHTTP(ctx, at, false) },
	"http2": func(ctx context.Context, at string) (string, error) { return askHTTP(ctx, at, true) },
	"grpc":  askGRPC,
	"tcp": func(ctx context.Context, at string) (string, error) {
		c := harness.NewTCPCaller(at, false)
		defer c.Close()
		return c.Call(ctx)
	},
}

// askHTTP sends a forged headerPeer, as any client could.
func askHTTP(ctx context.Context, at string, http2 bool) (string, error) {
	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	client := &http.Client{Transport: &http.Transport{Protocols: &protocols, DisableKeepAlives: true}}
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+"/", nil)
	if err != nil {
		return "", err
	}
	r.Header.Set(headerPeer, forgery)
	response, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the answer is %s", response.Status)
	}
	var answer harness.Answer
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return "", err
	}
	if http2 != (answer.Protocol == "HTTP/2.0") {
		return "", fmt.Errorf("the application is spoken to in %s", answer.Protocol)
	}
	return answer.Headers.Get(headerPeer), nil
}

func askGRPC(ctx context.Context, at string) (string, error) {
	conn, err := grpc.NewClient("passthrough:///"+at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	var header metadata.MD
	ctx = metadata.AppendToOutgoingContext(ctx, headerPeer, forgery)
	_, err = testgrpc.NewTestServiceClient(conn).UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.Header(&header))
	return strings.Join(header.Get(headerPeer), ","), err
}

func TestModes(t *testing.T) {
	for _, mode := range []string{strict, permissive} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, mode)
			var inbounds []inbound
			for protocol := range applicationProtocols {
				inbounds = append(inbounds, newInbound(t, m, protocol, protocol, protocol))
			}
			p := newPair(t, m, inbounds...)
			for protocol, ask := range applicationProtocols {
				t.Run(protocol+" in the mesh", func(t *testing.T) { p.mutualTLS(t, protocol, ask) })
				t.Run(protocol+" in plain text", func(t *testing.T) { p.plainText(t, mode, protocol, ask) })
			}
			t.Run("silent", func(t *testing.T) { p.silent(t, mode) })
		})
	}
}

// mutualTLS checks that A calls B over mTLS through A's outbound.
func (p *pair) mutualTLS(t *testing.T, service string, ask func(context.Context, string) (string, error)) {
	before := p.handshakes(t, service)
	ctx := wait.Context(t)
	peer, err := ask(ctx, p.a.Outbounds[service])
	if err != nil {
		t.Fatal(err)
	}
	if service != "tcp" {
		if want := "By=" + identityB; !strings.Contains(peer, want) {
			t.Errorf("the application received the peer %q, want %q in it", peer, want)
		}
		if want := "URI=" + identityA; !strings.HasSuffix(peer, want) {
			t.Errorf("the application received the peer %q, want %q at its end", peer, want)
		}
		if strings.Contains(peer, "forged") {
			t.Errorf("the application received %q, which the client forged", peer)
		}
	}
	if n := p.handshakes(t, service) - before; n != 1 {
		t.Errorf("%d handshakes with B, want 1", n)
	}
	if n := stat(t, p.a, "cluster."+service+".ssl.handshake"); n < 1 {
		t.Errorf("%d handshakes by A, want one", n)
	}
}

// plainText checks what happens to a client without a sidecar.
func (p *pair) plainText(t *testing.T, mode, service string, ask func(context.Context, string) (string, error)) {
	before := p.handshakes(t, service)
	ctx := wait.Context(t)
	peer, err := ask(ctx, p.inbound[service].at)
	switch {
	case mode == strict && err == nil:
		t.Error("a call in plain text was answered")
	case mode == strict && ctx.Err() != nil:
		t.Error("a call in plain text was neither answered nor refused")
	case mode == permissive && err != nil:
		t.Errorf("a call in plain text: %v", err)
	case peer != "":
		t.Errorf("the application received the peer %q from a client in plain text", peer)
	}
	if n := p.handshakes(t, service) - before; n != 0 {
		t.Errorf("%d handshakes with B, want 0", n)
	}
}

// silent checks a client that sends nothing: STRICT closes the connection after a timeout, PERMISSIVE treats it as
// plain text.
func (p *pair) silent(t *testing.T, mode string) {
	toApplication := func() int64 {
		return stat(t, p.b, fmt.Sprintf("cluster.inbound_%d.upstream_cx_active", must.Port(t, p.inbound["tcp"].at)))
	}
	must.Poll(t, "the connections of before to end", func(context.Context) error {
		if n := toApplication(); n > 0 {
			return fmt.Errorf("%d connections to the application", n)
		}
		return nil
	})
	started := time.Now()
	conn := must.Connect(t, p.inbound["tcp"].at)
	if mode == strict {
		if err := closedWithout(conn); err != nil {
			t.Error(err)
		}
		if after := time.Since(started); after < 2500*time.Millisecond {
			t.Errorf("closed after %s, want 3 s", after)
		}
		return
	}
	must.Poll(t, "Envoy to treat the connection as plain text", func(context.Context) error {
		if n := toApplication(); n < 1 {
			return fmt.Errorf("%d connections to the application", n)
		}
		return nil
	})
	if after := time.Since(started); after < inspection-100*time.Millisecond {
		t.Errorf("taken for plain text after %s", after)
	}
	if _, err := conn.Write([]byte("late\n")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := conn.Read(got); err != nil || string(got) != "late\n" {
		t.Errorf("Read() = %q, %v", got, err)
	}
}
