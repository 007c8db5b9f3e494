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

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/test/harness"
)

const (
	typeCluster  = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	typeEndpoint = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
)

// TestStrangersAskForResources asks for resources that it must not get, as anybody can who reaches the port.
func TestStrangersAskForResources(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	must(t, m.Put("other.yaml", strings.ReplaceAll(harness.MeshYAML("STRICT"), "name: default", "name: other")))
	proxies := add(t, m, harness.ProxyOptions{Name: "a-1", Service: "a"}, harness.ProxyOptions{Name: "b-1", Service: "b"},
		harness.ProxyOptions{Name: "a-1", Service: "a", Mesh: "other"})
	mine, other := identityOf(t, proxies[0]), identityOf(t, proxies[2])
	tests := map[string]struct {
		identity *tls.Certificate
		node     string
		kind     string
		code     codes.Code
		message  string
	}{
		"one's own":         {identity: &mine, node: "default/a-1", kind: typeCluster, code: codes.OK},
		"another proxy's":   {&mine, "default/b-1", typeCluster, codes.PermissionDenied, `"default/b-1"`},
		"another mesh's":    {&other, "default/a-1", typeCluster, codes.PermissionDenied, `"default/a-1"`},
		"nobody's":          {&mine, "default/nobody", typeCluster, codes.PermissionDenied, `"default/nobody"`},
		"without a node":    {&mine, "", typeCluster, codes.InvalidArgument, "node.id"},
		"no certificate":    {nil, "default/a-1", typeCluster, codes.Unauthenticated, "certificate"},
		"no type":           {&mine, "default/a-1", "", codes.InvalidArgument, "type_url"},
		"a type of no use":  {&mine, "default/a-1", "type.googleapis.com/google.protobuf.Empty", codes.OK, ""}, // there are none
		"a type of its own": {&mine, "default/a-1", "what", codes.OK, ""},
	}
	for name, tc := range tests {
		for protocol, ask := range map[string]asker{"delta": askDelta, "state of the world": askState} {
			t.Run(name+"/"+protocol, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				err := ask(ctx, connectADS(t, m, tc.identity), tc.node, tc.kind)
				if got := status.Convert(err); got.Code() != tc.code || !strings.Contains(got.Message(), tc.message) {
					t.Errorf("the answer is %v, want %s, with %q", err, tc.code, tc.message)
				}
			})
		}
	}
	t.Run("a certificate of another mesh at an inbound", func(t *testing.T) {
		if err := admits(t.Context(), tlsServer{proxies[1].Inbound, mesh}, mine); err != nil {
			t.Errorf("the certificate of its own mesh is refused: %v", err)
		}
		if err := admits(t.Context(), tlsServer{proxies[1].Inbound, mesh}, other); !isRefusal(err) {
			t.Errorf("it ends with: %v, want it refused", err)
		}
	})
	t.Run("a certificate of another control plane", func(t *testing.T) {
		stranger := newMesh(t, 0)
		theirs := add(t, stranger, harness.ProxyOptions{Name: "a-1", Service: "a"})[0]
		for _, server := range []tlsServer{{proxies[1].Inbound, mesh}, {m.Agents, http2}} {
			if err := admits(t.Context(), server, identityOf(t, theirs)); !isRefusal(err) {
				t.Errorf("at %s it ends with: %v, want it refused", server.at, err)
			}
		}
	})
	synced(t, proxies...)
}

// connectADS connects as the proxy with that certificate.
func connectADS(t *testing.T, m *harness.Machine, identity *tls.Certificate) *grpc.ClientConn {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(read(t, filepath.Join(m.StateDir(), "serving-ca.crt")))) {
		t.Fatal("the serving CA is no PEM")
	}
	config := &tls.Config{RootCAs: roots, ServerName: "sonde-cp.sonde.internal"}
	if identity != nil {
		config.Certificates = []tls.Certificate{*identity}
	}
	conn, err := grpc.NewClient("passthrough:///"+m.Agents, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// asker asks for a type of resource as a node, and waits for the first answer.
type asker func(ctx context.Context, conn *grpc.ClientConn, node, kind string) error

func askDelta(ctx context.Context, conn *grpc.ClientConn, node, kind string) error {
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: node}, TypeUrl: kind}); err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

func askState(ctx context.Context, conn *grpc.ClientConn, node, kind string) error {
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: node}, TypeUrl: kind}); err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// TestStrangersJoin lets agents join with tokens that are not theirs or have expired. Each is told why, gets nothing, and
// joins once it has a good token.
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
				poll(t, "the token to expire", func(context.Context) error {
					if time.Now().Before(over) {
						return errors.New("it is good")
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
			p := prepare(t, m, harness.ProxyOptions{Name: name, Service: "a"})
			token := tc.token(t) // before the Dataplane is known: then none for another workload would be made
			must(t, errors.Join(p.Declare(), p.StartApp(t.Context()), p.SetToken(token), p.RunAgent()))
			poll(t, "the agent to say why it does not join", func(ctx context.Context) error {
				_, err := m.Get(ctx, "http://"+p.Admin+"/readyz")
				if s := statusOf(err); s.Code != 503 || !strings.Contains(s.Body, tc.want) {
					return fmt.Errorf("its readiness is %w, want 503 with %q", err, tc.want)
				}
				return nil
			})
			logged(t, p.Agent, "the agent keeps trying")
			if name != "nothing" { // the agent does not try without a token
				namedInLog(t, m, name)
			}
			if _, err := os.Stat(p.IdentityFile()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("it has an identity: %v", err)
			}
			if pids, err := p.Processes(); err != nil || len(pids) > 0 {
				t.Errorf("processes %v, %v run: want no Envoy", pids, err)
			}
			if tc.want == "expired" { // one case is enough: it tries again every 5 s
				must(t, p.MakeToken(t.Context()))
				must(t, p.WaitReady(t.Context()))
			}
			p.Agent.Kill()
		})
	}
}

// namedInLog waits until the control plane has logged that it refuses a proxy, which names what was asked for.
func namedInLog(t *testing.T, m *harness.Machine, name string) {
	t.Helper()
	poll(t, "the refusal to be in the log of the control plane", func(context.Context) error {
		for line := range strings.Lines(read(t, m.ControlPlane.Log)) {
			if strings.Contains(line, "join refused") && strings.Contains(line, fmt.Sprintf(`"mesh":"default","proxy":%q,"peer":"127.0.0.1"`, name)) {
				return nil
			}
		}
		return errors.New("it is not there")
	})
}

func makeToken(t *testing.T, m *harness.Machine, args ...string) string {
	t.Helper()
	token, err := m.Ctl(t.Context(), append([]string{"generate", "dataplane-token"}, args...)...)
	must(t, err)
	return token
}

// changeLimit is how long an endpoint may take to reach an Envoy while another proxy does not read. It takes about 100 ms; the
// server waits a minute for a proxy that does not read.
const changeLimit = 5 * time.Second

// TestProxyThatDoesNotRead asks for far more than fits into the connection and then does not read. The others must not notice.
func TestProxyThatDoesNotRead(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	proxies := add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b"}}, harness.ProxyOptions{Name: "b-1", Service: "b"},
		harness.ProxyOptions{Name: "b-2", Service: "b"}, harness.ProxyOptions{Name: "s-1", Service: "s", Outbound: []string{"b", "big"}})
	a, b1, b2, s := proxies[0], proxies[1], proxies[2], proxies[3]
	const size = 4000
	must(t, m.Put("big.yaml", bigService(size)))
	poll(t, "the big service", func(ctx context.Context) error {
		out, err := m.Ctl(ctx, "inspect", "dataplane", s.Name, "--type=endpoints")
		if err == nil && strings.Count(out, "address: 10.") != size {
			err = fmt.Errorf("it has %d endpoints", strings.Count(out, "address: 10."))
		}
		return err
	})
	s.Agent.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	identity := identityOf(t, s)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(connectADS(t, m, &identity)).DeltaAggregatedResources(ctx)
	must(t, err)
	must(t, stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "default/s-1"}, TypeUrl: typeEndpoint, ResourceNamesSubscribe: []string{"b", "big"},
	}))
	poll(t, "the stream that is not read to be there", func(ctx context.Context) error {
		state, err := s.State(ctx)
		if err == nil && len(state.Streams) != 1 {
			err = fmt.Errorf("it has %d", len(state.Streams))
		}
		return err
	})
	load := startLoad(t, httpCallers(a, "b")...)
	const rounds = 10
	slowest := slowestChange(t, rounds, a, b1, b2)
	t.Logf("the slowest of %d changes took %d ms", 2*rounds, slowest.Milliseconds())
	if slowest > changeLimit {
		t.Errorf("a change took %s while another proxy does not read, want at most %s", slowest, changeLimit)
	}
	held(t, load)
	// When it reads again it is served, without outdated versions.
	for answers := 1; ; answers++ {
		answer, err := stream.Recv()
		must(t, err)
		for _, r := range answer.GetResources() {
			if r.GetName() != "big" {
				continue
			}
			if got := len(r.GetResource().GetValue()); got < size*20 {
				t.Errorf("its answer has %d bytes: too few to fill a connection", got)
			}
			if answers > rounds {
				t.Errorf("%d answers were kept for it", answers)
			}
			return
		}
	}
}

// slowestChange makes b2 unready and ready again in each round, and returns the longest time until a had the change.
func slowestChange(t *testing.T, rounds int, a, b1, b2 *harness.Proxy) (slowest time.Duration) {
	t.Helper()
	for range rounds {
		for _, ready := range []bool{false, true} {
			must(t, b2.SetReady(ready))
			changed := time.Now()
			if ready {
				endpoints(t, a, "b", b1, b2)
			} else {
				endpoints(t, a, "b", b1)
			}
			slowest = max(slowest, time.Since(changed))
		}
	}
	return slowest
}

// bigService returns a Service with that many endpoints.
func bigService(endpoints int) string {
	var text strings.Builder
	text.WriteString("type: Service\nmesh: default\nname: big\nprotocol: http\nendpoints:\n")
	for n := range endpoints {
		fmt.Fprintf(&text, "- {address: 10.%d.%d.%d, port: 80}\n", n>>16, n>>8&0xff, n&0xff)
	}
	return text.String()
}
