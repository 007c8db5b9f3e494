package throughput

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/test/harness"
)

var controlPlane = flag.String("control-plane", "", "`path` of another sonde-cp")

// BenchmarkThroughput repeats requests from a client to an application, both in this process.
func BenchmarkThroughput(b *testing.B) {
	m := newMachine(b, "STRICT")
	http1, http2 := startServer(b, m, "http").AppAddress, startServer(b, m, "http2").AppAddress
	clients, err := m.Add(b.Context(), harness.ProxyOptions{Name: "client", Service: "client", Outbound: []string{"http", "http2"}})
	if err != nil {
		b.Fatal(err)
	}
	if err := harness.Poll(b.Context(), "the client to have all endpoints", clients[0].Synced); err != nil {
		b.Fatal(err)
	}
	for _, w := range workloads {
		direct, mesh := http1, clients[0].Outbounds["http"]
		if w.http2 {
			direct, mesh = http2, clients[0].Outbounds["http2"]
		}
		b.Run(fmt.Sprintf("workload=%s/at-once=%d/sidecar=no", w.name, w.atOnce), func(b *testing.B) { repeat(b, w, direct) })
		b.Run(fmt.Sprintf("workload=%s/at-once=%d/sidecar=yes", w.name, w.atOnce), func(b *testing.B) { repeat(b, w, mesh) })
	}
}

// newMachine starts a control plane with a mesh in the given mode.
func newMachine(b *testing.B, mode string) *harness.Machine {
	b.Helper()
	programs, err := harness.Build(b.Context(), false)
	if err != nil {
		b.Fatal(err)
	}
	if *controlPlane != "" {
		programs.ControlPlane = *controlPlane
	}
	return harness.New(b, harness.Options{Programs: programs, MeshYAML: harness.MeshYAML(mode)})
}

// repeat makes b.N requests.
func repeat(b *testing.B, w workload, at string) {
	b.Helper()
	client, end := newClient(w.http2)
	defer end()
	if err := w.ask(b.Context(), client, at); err != nil { // opens the connection
		b.Fatal(err)
	}
	b.SetBytes(w.up + w.down)
	b.ResetTimer()
	var group errgroup.Group
	group.SetLimit(w.atOnce)
	for range b.N {
		group.Go(func() error { return w.ask(b.Context(), client, at) })
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
}

// startServer starts a proxy with the application behind it.
func startServer(b *testing.B, m *harness.Machine, protocol string) *harness.Proxy {
	b.Helper()
	p, err := m.Prepare(harness.ProxyOptions{Name: protocol, Service: protocol, Protocol: protocol})
	if err != nil {
		b.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", p.AppAddress)
	if err != nil {
		b.Fatal(err)
	}
	server := serve(l)
	b.Cleanup(func() { _ = server.Close() })
	if err := errors.Join(p.Declare(), p.StartAgent(b.Context()), p.WaitReady(b.Context())); err != nil {
		b.Fatal(err)
	}
	return p
}
