package hostile

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/test/cgrouptest"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
	"github.com/sonde-mesh/sonde/xds/resource"
)

const (
	// controlPlaneMemory is the chart's memory limit.
	controlPlaneMemory = 512 << 20
	// late is the timeout of a user's request: the goal is two seconds, but the attackers use the same machine.
	late = 5 * time.Second
	// attackTime is the duration of each attack.
	attackTime = 2 * time.Second
	// hostileMembers is the number of members of the mesh that attack.
	hostileMembers = 4
	// logLimit is how many bytes an attack may add to the log.
	logLimit = 128 << 10
)

// target is a control plane in a cgroup, with its users.
type target struct {
	*harness.Machine
	t      *testing.T
	memory *cgrouptest.Memory
	roots  *x509.CertPool
	// hostile has the identities of attacking members.
	hostile []tls.Certificate
}

// newTarget starts a control plane with these options; it sets the programs itself.
func newTarget(t *testing.T, o harness.Options) *target {
	t.Helper()
	g := cgrouptest.NewMemory(t, controlPlaneMemory)
	o.Programs = programs
	o.Programs.ControlPlane = g.Program(t, programs.ControlPlane)
	x := &target{Machine: harness.New(t, o), t: t, memory: g, roots: x509.NewCertPool()}
	ca, err := os.ReadFile(filepath.Join(x.StateDir(), "serving-ca.crt"))
	must.Do(t, err)
	if !x.roots.AppendCertsFromPEM(ca) {
		t.Fatal("the serving CA is no PEM")
	}
	return x
}

func (x *target) tls(certificates ...tls.Certificate) *tls.Config {
	return &tls.Config{RootCAs: x.roots, ServerName: "sonde-cp.sonde.internal", Certificates: certificates, NextProtos: []string{"h2"}}
}

func (x *target) dial(certificates ...tls.Certificate) *grpc.ClientConn {
	return x.dialAt(x.Agents, certificates...)
}

func (x *target) dialAt(address string, certificates ...tls.Certificate) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(x.tls(certificates...))))
	if err != nil {
		panic(err) // invalid options
	}
	return conn
}

// member is a Dataplane that joins without an agent.
type member struct {
	x     *target
	name  string
	token string
	key   *ecdsa.PrivateKey
	csr   []byte
}

// newMember writes a Dataplane, and creates its token.
func (x *target) newMember(name string) *member {
	x.t.Helper()
	p, err := x.Prepare(harness.ProxyOptions{Name: name, Service: "web"})
	must.Do(x.t, err)
	must.Do(x.t, p.Declare())
	m := &member{x: x, name: name}
	m.token, err = x.Ctl(x.t.Context(), "generate", "dataplane-token", "--name="+name, "--workload=web")
	must.Do(x.t, err)
	m.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.Do(x.t, err)
	m.csr, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, m.key)
	must.Do(x.t, err)
	return m
}

// join joins with the token, on a new connection.
func (m *member) join(ctx context.Context) (tls.Certificate, error) {
	conn := m.x.dial()
	defer func() { _ = conn.Close() }()
	r, err := agentv1.NewAgentServiceClient(conn).Join(ctx, &agentv1.JoinRequest{
		Mesh: "default", Name: m.name, Token: m.token, Csr: m.csr, ControlPlaneAddress: m.x.Agents,
	})
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: r.GetIdentity().GetCertificateChain(), PrivateKey: m.key}, nil
}

// joined joins once the control plane has read the Dataplane.
func (m *member) joined() tls.Certificate {
	m.x.t.Helper()
	var identity tls.Certificate
	must.Poll(m.x.t, m.name+" to join", func(ctx context.Context) (err error) {
		identity, err = m.join(ctx)
		return err
	})
	return identity
}

// asksADS opens an ADS stream like a newly started Envoy, and waits for its clusters.
func (x *target) asksADS(ctx context.Context, node string, identity tls.Certificate) error {
	conn := x.dial(identity)
	defer func() { _ = conn.Close() }()
	return askADS(ctx, conn, node)
}

func askADS(ctx context.Context, conn *grpc.ClientConn, node string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := envoysim.OpenWire(ctx, envoysim.Delta, conn)
	if err != nil {
		return err
	}
	if err := stream.Send(&envoysim.Request{Node: node, Type: resource.Cluster}); err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// user repeatedly calls the control plane, each time as a new client.
type user struct {
	name  string
	pause time.Duration
	ask   func(ctx context.Context) error
}

// users returns the users that an attack must not affect.
func (x *target) users() []user {
	x.t.Helper()
	joining := x.newMember("joining")
	joining.joined()
	envoy := x.newMember("envoy")
	identity := envoy.joined()
	return []user{
		{"an Envoy with a certificate", 100 * time.Millisecond, func(ctx context.Context) error { return x.asksADS(ctx, "default/envoy", identity) }},
		// A proxy may get a certificate once a second, and each attack starts with a request.
		{"an agent that joins with a token", 1700 * time.Millisecond, func(ctx context.Context) error {
			_, err := joining.join(ctx)
			return err
		}},
		{"a kubelet that asks /readyz", 200 * time.Millisecond, func(ctx context.Context) error {
			_, err := x.Get(ctx, "http://"+x.Health+"/readyz")
			return err
		}},
		{"Prometheus", 500 * time.Millisecond, func(ctx context.Context) error {
			_, err := x.Get(ctx, "http://"+x.Health+"/metrics")
			return err
		}},
		{"an operator", 500 * time.Millisecond, func(ctx context.Context) error {
			_, err := x.Ctl(ctx, "get", "proxies")
			return err
		}},
	}
}

// result is a user's result.
type result struct {
	asked   int
	longest time.Duration
	errs    []error
}

func (u user) run(ctx context.Context) (r result) {
	tick := time.NewTicker(u.pause)
	defer tick.Stop()
	for ; ; <-tick.C {
		begin := time.Now()
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), late)
		err := u.ask(asking)
		cancel()
		r.asked++
		r.longest = max(r.longest, time.Since(begin))
		if err != nil {
			r.errs = append(r.errs, fmt.Errorf("after %s: %w", time.Since(begin).Round(time.Millisecond), err))
		}
		if ctx.Err() != nil {
			return r
		}
	}
}

// askAll has users make requests until ctx ends. It fails the test if a request is refused or late.
func askAll(ctx context.Context, t *testing.T, users []user) {
	t.Helper()
	results := make([]result, len(users))
	var asking sync.WaitGroup
	for i, u := range users {
		asking.Go(func() { results[i] = u.run(ctx) })
	}
	asking.Wait()
	for i, r := range results {
		t.Logf("%s: asked %d times, the longest took %s", users[i].name, r.asked, r.longest.Round(time.Millisecond))
		if len(r.errs) > 0 {
			t.Errorf("%s: %d of %d questions were not answered, the first: %v", users[i].name, len(r.errs), r.asked, r.errs[0])
		}
	}
}

// attack runs an attack together with users. It fails the test if a user is refused or late, or if the control plane
// exits or fills its log.
func (x *target) attack(t *testing.T, users []user, a aims) {
	t.Helper()
	before := x.logSize(t)
	defer startAttackers(t, a)()
	ctx, cancel := context.WithTimeout(t.Context(), attackTime)
	defer cancel()
	askAll(ctx, t, users)
	if n := x.memory.Killed(t); n > 0 || !x.ControlPlane.Running() {
		t.Fatalf("the control plane has ended, %d processes were killed for lack of memory", n)
	}
	t.Logf("the most memory so far is %d MiB", x.memory.Peak(t)>>20)
	if grown := x.logSize(t) - before; grown > logLimit {
		t.Errorf("the log has grown by %d bytes, want at most %d", grown, logLimit)
	}
}

func (x *target) logSize(t *testing.T) int64 {
	t.Helper()
	s, err := os.Stat(x.ControlPlane.Log)
	must.Do(t, err)
	return s.Size()
}

// TestControlPlane attacks the ports of the control plane, one attack after the other. Attackers and users have the
// same address.
func TestControlPlane(t *testing.T) {
	x := newTarget(t, harness.Options{Prepare: prepareMesh})
	users := x.users()
	for _, a := range x.aims().attacks() {
		t.Run(a.name, func(t *testing.T) { x.attack(t, users, x.aims(a.name)) })
	}
	x.rest(t)
}

// rest waits until the attackers' connections and goroutines have ended.
func (x *target) rest(t *testing.T) {
	t.Helper()
	must.Poll(t, "connections and goroutines of attackers to end", func(ctx context.Context) error {
		m, err := x.Metrics(ctx)
		if err != nil {
			return err
		}
		if files, goroutines := m["process_open_fds"], m["go_goroutines"]; files > 60 || goroutines > 200 {
			return fmt.Errorf("%v files and %v goroutines are left", files, goroutines)
		}
		return nil
	})
}

// TestRealAgent starts real agents with their Envoys during the floods that once kept them from
// joining.
func TestRealAgent(t *testing.T) {
	x := newTarget(t, harness.Options{})
	for _, a := range controlPlaneAttacks() {
		if a.agent == "" {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			defer startAttackers(t, x.aims(a.name))()
			started, err := x.Add(t.Context(), harness.ProxyOptions{Name: "real-" + a.agent, Service: "web"})
			must.Do(t, err)
			for _, p := range started {
				must.Poll(t, "the agent to have everything", p.Synced)
				p.Agent.Kill()
			}
		})
	}
}
