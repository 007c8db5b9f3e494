package perport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/kubernetes/pkg/probe"
	grpcprobe "k8s.io/kubernetes/pkg/probe/grpc"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"
	tcpprobe "k8s.io/kubernetes/pkg/probe/tcp"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

const (
	// timeout of a probe.
	timeout = time.Second
	// address is the Dataplane's, and tableAddress an agent's with a table.
	address      = "127.0.0.2"
	tableAddress = "127.0.0.3"
)

// seed is the Dataplane of the example seed, on this machine.
type seed struct {
	t testing.TB
	m *harness.Machine
	p *harness.Proxy
	// http, tcp, grpc, only and rpc are ports for probes: 19000, 3476 and 2379, then a port with the protocol tcp,
	// and one with grpc.
	http, tcp, grpc, only, rpc int
	// inbound and other are the ports of HTTP probes; inboundApp is the port of the application behind the inbound.
	inbound, other, inboundApp int
	yaml                       string
}

// newSeed starts a control plane, and the proxy of the Dataplane. Its label has the given mode; "" means no label.
// HTTP_PORT in an argument of its agent is replaced by the port for HTTP probes.
func newSeed(t testing.TB, mode string, o harness.Options, p harness.ProxyOptions) *seed {
	t.Helper()
	if o.Programs == (harness.Programs{}) {
		o.Programs = programs
	}
	m := harness.New(t, o)
	s := &seed{t: t, m: m}
	for _, port := range []*int{&s.http, &s.tcp, &s.grpc, &s.only, &s.rpc, &s.inbound, &s.other, &s.inboundApp} {
		at, err := m.FreeAddress()
		must.Do(t, err)
		*port = must.Port(t, at)
	}
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "testdata", "probes-per-port", "mesh.yaml"))
	must.Do(t, err)
	_, dataplane, _ := strings.Cut(string(data), "---\n")
	const last = "path: /3001/metrics}\n"
	dataplane = strings.Replace(dataplane, last, last+"    - {inboundPath: /a%2Fb//%41, inboundPort: 3001, path: /escaped%20}\n", 1)
	s.yaml = strings.NewReplacer(
		"192.168.0.2", address, "19000", itoa(s.http), "18080", itoa(s.inboundApp), "8080", itoa(s.inbound), "3001", itoa(s.other),
		"2379", itoa(s.grpc), "3476", itoa(s.tcp),
	).Replace(dataplane) + fmt.Sprintf("  - {port: %d, protocol: tcp}\n  - {port: %d, protocol: grpc}\n", s.only, s.rpc)
	p.Name, p.Service = "busybox-1", "busybox"
	for i, arg := range p.AgentArgs {
		p.AgentArgs[i] = strings.ReplaceAll(arg, "HTTP_PORT", itoa(s.http))
	}
	s.p, err = m.Prepare(p)
	must.Do(t, err)
	s.put(mode)
	must.Do(t, s.p.StartAgent(t.Context()))
	must.Do(t, s.p.WaitReady(t.Context()))
	return s
}

func itoa(port int) string { return strconv.Itoa(port) }

// put writes the Dataplane with a mode in its label; "" means no label.
func (s *seed) put(mode string) {
	s.t.Helper()
	const labels = "labels: {sonde.dev/virtual-probes-mode: per-port}"
	if !strings.Contains(s.yaml, labels) {
		s.t.Fatalf("the Dataplane has no %s", labels)
	}
	wanted := "labels: {}"
	if mode != "" {
		wanted = "labels: {sonde.dev/virtual-probes-mode: " + mode + "}"
	}
	must.Do(s.t, s.m.Put("busybox-1.yaml", strings.Replace(s.yaml, labels, wanted, 1)))
}

// app returns the address of an application without an inbound.
func app(port int) string { return net.JoinHostPort("127.0.0.1", itoa(port)) }

// verdict returns an error unless the kubelet's prober returned the wanted verdict.
func verdict(want, got probe.Result, output string, err error) error {
	if err != nil {
		got = probe.Unknown
	}
	if got != want {
		return fmt.Errorf("%s (%s, %w), want %s", got, output, err, want)
	}
	return nil
}

// asksTCP probes over TCP, as the kubelet does.
func asksTCP(port int, want probe.Result) func(context.Context) error {
	return func(context.Context) error {
		got, output, err := tcpprobe.New().Probe(address, port, timeout)
		return verdict(want, got, output, err)
	}
}

// asksGRPC probes a gRPC service, as the kubelet does.
func asksGRPC(port int, service string, want probe.Result) func(context.Context) error {
	return asksGRPCWithin(port, service, timeout, want)
}

func asksGRPCWithin(port int, service string, timeout time.Duration, want probe.Result) func(context.Context) error {
	return func(context.Context) error {
		got, output, err := grpcprobe.New().Probe(address, service, port, timeout, grpcprobe.ProbeOptions{})
		return verdict(want, got, output, err)
	}
}

// asksHTTP probes over HTTP, as the kubelet does.
func (s *seed) asksHTTP(path string, timeout time.Duration, want probe.Result) func(context.Context) error {
	return func(context.Context) error {
		r, err := http.NewRequest(http.MethodGet, s.url(path), nil) // the kubelet's request has no context
		if err != nil {
			return err
		}
		r.Header.Set("User-Agent", "kube-probe/1.36")
		r.Header.Set("X-Original-Url", "/admin") // the application must not receive the caller's header
		r.Host = "elsewhere.example"
		got, output, err := httpprobe.New(false).Probe(r, timeout)
		if strings.Contains(output, "SECRET") {
			return fmt.Errorf("the answer has text of the application: %q", output)
		}
		return verdict(want, got, output, err)
	}
}

func (s *seed) url(path string) string {
	return "http://" + net.JoinHostPort(address, itoa(s.http)) + path
}

// refused returns an error unless a port of the Dataplane is closed.
func refused(port int) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(address, itoa(port)))
		if err == nil {
			return errors.Join(fmt.Errorf("somebody listens on port %d", port), conn.Close())
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		return nil
	}
}
