// Command program asks probes and hooks with the kubelet's code that is built into it. It serves tests of kubelet
// versions other than the tests' own: JSON-RPC calls arrive on standard input, many at the same time, until it ends.
// ../../kubelets has the versions.
package main

import (
	"context"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"runtime/debug"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

func main() {
	kubelet.Version = version()
	server := rpc.NewServer()
	if err := server.RegisterName("Kubelets", &Kubelets{}); err != nil {
		panic(err) // a method below has the wrong form
	}
	server.ServeCodec(jsonrpc.NewServerCodec(struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout}))
}

// version returns the minor version of the built-in module, such as 1.36. A test program does not know its modules, but
// this program does.
func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, m := range info.Deps {
		if m.Path == "k8s.io/kubernetes" {
			parts := strings.Split(strings.TrimPrefix(m.Version, "v"), ".")
			return strings.Join(parts[:2], ".")
		}
	}
	panic("k8s.io/kubernetes is not among the modules of this program")
}

// Kubelets are numbered by the callers. Each has its own connections.
type Kubelets struct{ all sync.Map }

// Request is a request to one kubelet.
type Request struct {
	Kubelet int
	Pod     *corev1.Pod
	// Container has the probe or hook of this Kind.
	Container corev1.Container
	Kind      string
}

// Answer has the results of kubelet.Probe or kubelet.Hook.
type Answer struct{ Verdict, Event, Message string }

func (ks *Kubelets) of(number int) *kubelet.Kubelet {
	k, _ := ks.all.LoadOrStore(number, kubelet.New())
	return k.(*kubelet.Kubelet)
}

// Probe is kubelet.Probe.
func (ks *Kubelets) Probe(r Request, a *Answer) error { //nolint:unparam // as net/rpc wants it
	a.Verdict, a.Event = ks.of(r.Kubelet).Probe(context.Background(), r.Pod, r.Container, r.Kind)
	return nil
}

// Hook is kubelet.Hook.
func (ks *Kubelets) Hook(r Request, a *Answer) error { //nolint:unparam // as net/rpc wants it
	a.Verdict, a.Event, a.Message = ks.of(r.Kubelet).Hook(context.Background(), r.Pod, r.Container, r.Kind)
	return nil
}

// Close is kubelet.Close.
func (ks *Kubelets) Close(number int, _ *bool) error { //nolint:unparam // as net/rpc wants it
	if k, ok := ks.all.LoadAndDelete(number); ok {
		k.(*kubelet.Kubelet).Close()
	}
	return nil
}
