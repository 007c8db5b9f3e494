package kube

import (
	"context"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/controlplane"
)

// relay is a connection to the API server that can hang: connections stay open, and no data passes.
type relay struct {
	address string
	passes  sync.RWMutex // read-locked while data passes
}

func newRelay(t *testing.T) *relay {
	t.Helper()
	server, err := url.Parse(cluster.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{address: "https://" + listener.Addr().String()}
	var running sync.WaitGroup
	ctx, cancel := detached(t)
	t.Cleanup(func() {
		_ = listener.Close()
		cancel()
		running.Wait()
	})
	running.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return // the listener is closed
			}
			to, err := new(net.Dialer).DialContext(ctx, "tcp", server.Host)
			if err != nil {
				_ = from.Close()
				continue
			}
			closeBoth := sync.OnceFunc(func() {
				_ = from.Close()
				_ = to.Close()
			})
			context.AfterFunc(ctx, closeBoth)
			for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
				running.Go(func() {
					defer closeBoth()
					_, _ = io.Copy(&relayed{r, way[1]}, &relayed{r, way[0]}) // until one side closes
				})
			}
		}
	})
	return r
}

// relayed hides methods with which io.Copy would bypass Write.
type relayed struct {
	relay *relay
	conn  net.Conn
}

func (r *relayed) Read(b []byte) (int, error) { return r.conn.Read(b) }

func (r *relayed) Write(b []byte) (int, error) {
	r.relay.passes.RLock()
	defer r.relay.passes.RUnlock()
	return r.conn.Write(b)
}

// hang stops all data until the caller calls resume, or the test ends.
func (r *relay) hang(t *testing.T) (resume func()) {
	t.Helper()
	r.passes.Lock()
	resume = sync.OnceFunc(r.passes.Unlock)
	t.Cleanup(resume)
	return resume
}

// newPodMachine creates a pod with a sidecar, and returns its agent as a machine.
func newPodMachine(t *testing.T, client kubernetes.Interface, namespace, name string) *machine {
	t.Helper()
	m := newGuardedPod(t, client, namespace, func(p *corev1.Pod) { p.Name = name })
	m.name = name + "." + namespace
	return m
}

// TestStaleReplica disconnects one of two replicas from the API server, while its connections stay open. It detects
// that its state is stale from its peer's reports, long before a request times out.
func TestStaleReplica(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "stale", nil)
	way, kubeconfig := newRelay(t), filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(kubeconfig, way.address, cluster.Config.BearerToken); err != nil {
		t.Fatal(err)
	}
	sees := startPlane(t, "sees", func(o *controlplane.Options) { o.BindAddress = controlplane.DefaultBindAddress })
	blind := startPlane(t, "blind", func(o *controlplane.Options) {
		o.BindAddress, o.Kubernetes.Kubeconfig = controlplane.DefaultBindAddress, kubeconfig
	})
	introduce(t, client, []string{"sees", "blind"}, []*plane{sees, blind})
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	first := newPodMachine(t, client, "stale", "first")
	first.join(blind)
	session := first.open(blind, false)
	envoy := first.connect(blind)
	session.until("its listeners are accepted", acceptedInbounds)
	blind.says(t, "/readyz?verbose", "\n[+]current ok")

	resume := way.hang(t)
	second := newPodMachine(t, client, "stale", "second")
	second.join(sees)
	blind.says(t, "/readyz?verbose", "\n[-]current failed: replica sees has seen changes of pods for ")
	session.endsWith(codes.Unavailable)
	envoy.ends()
	second.open(blind, false).endsWith(codes.Unavailable)
	sees.says(t, "/readyz?verbose", "\n[+]current ok")
	sees.says(t, "/metrics", "\nsonde_peers_stale 0\n")
	blind.says(t, "/metrics", "\nsonde_peers_stale 1\n")
	blind.says(t, "/metrics", "\nsonde_identity_connections_closed_total{reason=\"away\"} ")
	sees.says(t, "/metrics", "\nsonde_leader 1\n")
	for _, m := range []*machine{first, second} {
		elsewhere := m.open(sees, false)
		m.connect(sees)
		elsewhere.until("its listeners are accepted", acceptedInbounds)
	}

	// A replica that replaces the peer also connects, although the stale replica cannot discover it through the API
	// server.
	sees.stop()
	again := startPlane(t, "again", func(o *controlplane.Options) { o.BindAddress = controlplane.DefaultBindAddress })
	writePeers(t, client, []string{"again"}, []*plane{again})
	newPodMachine(t, client, "stale", "third")
	blind.says(t, "/readyz?verbose", "\n[-]current failed: replica again has seen changes of pods for ")

	resume()
	blind.says(t, "/readyz?verbose", "\n[+]current ok")
	session = second.open(blind, false)
	second.connect(blind)
	session.until("its listeners are accepted", acceptedInbounds)
	again.says(t, "/readyz?verbose", "\n[+]current ok")
}
