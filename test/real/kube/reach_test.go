package kube

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/test/must"
)

// forward forwards connections at an address to the API server, until stop is called or the test ends. stop breaks
// open connections.
func forward(t *testing.T, address string) (stop func()) {
	t.Helper()
	return forwardTo(t, address, strings.TrimPrefix(cluster.Config.Host, "https://"), 0)
}

// forwardTo is forward to another host:port. It closes the first refused connections at once.
func forwardTo(t *testing.T, address, to string, refused int) (stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	broken := make(chan struct{})
	stop = sync.OnceFunc(func() {
		_ = l.Close()
		close(broken)
	})
	t.Cleanup(stop)
	pass := func(in net.Conn) {
		ended := make(chan struct{})
		defer close(ended)
		go func() {
			select {
			case <-broken:
			case <-ended:
			}
			_ = in.Close()
		}()
		out, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		var both sync.WaitGroup
		for from, to := range map[net.Conn]net.Conn{in: out, out: in} {
			both.Go(func() {
				_, _ = io.Copy(to, from)
				_ = to.Close()
			})
		}
		both.Wait()
	}
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			if refused > 0 {
				refused--
				_ = in.Close()
				continue
			}
			go pass(in)
		}
	}()
	return stop
}

// A control plane that starts before its API server is live, reports what it waits for, and then becomes
// ready.
func TestAPIServerComesLater(t *testing.T) {
	deleteMeshes(t)
	address, kubeconfig := must.FreeAddresses(t, 1)[0], filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(kubeconfig, "https://"+address, cluster.Config.BearerToken); err != nil {
		t.Fatal(err)
	}
	early := func(o *controlplane.Options) { o.Kubernetes.Kubeconfig = kubeconfig }
	launchPlane(t, "ends", early).stop() // without an error
	p := launchPlane(t, "waits", early)
	must.Poll(t, "its life", func(ctx context.Context) error { return p.healthy(ctx, "/livez") })
	must.Poll(t, "the reason why it is not ready", func(ctx context.Context) error {
		err := p.ready(ctx)
		if err == nil {
			return errors.New("the control plane is ready")
		}
		if strings.Contains(err.Error(), "connection refused") {
			return nil
		}
		return err
	})
	forward(t, address)
	must.Poll(t, "its readiness", p.ready)
}
