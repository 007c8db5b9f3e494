package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"

	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/bench/arrivals"
	"github.com/sonde-mesh/sonde/test/bench/proc"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// clientGC is the GOGC of the proxies: they use more memory, to leave CPU time to the control planes.
const clientGC = 400

// BenchmarkReplicas runs the same proxies with one replica, and then with two. All proxies connect; then one endpoint
// of a service that all proxies use changes repeatedly; then the second replica is killed.
func BenchmarkReplicas(b *testing.B) {
	program, err := harness.BuildInto(b.Context(), b.TempDir(), "cmd/sonde-cp")
	if err != nil {
		b.Fatal(err)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(clientGC))
	for _, size := range []int{50, 1000, 5000} {
		b.Run(fmt.Sprintf("proxies=%d", size), func(b *testing.B) {
			deleteMeshes(b)
			web := newBalanced(b, fmt.Sprintf("bench-%d", size))
			// A control plane that is not measured issues the certificates.
			first := startProcess(b, program, "first")
			accepted(b, sondePath("", "meshes")+"/default", "True", "Accepted", "")
			f := newFleet(b, first.plane, web.namespace, web.name, size)
			first.stop()
			for _, s := range []struct {
				subject string
				names   []string
			}{{"one", []string{"a"}}, {"two", []string{"a", "b"}}} {
				b.Run("subject="+s.subject, func(b *testing.B) {
					m := &measured{B: b, fleet: f, web: web, metrics: map[string]float64{}}
					m.start(program, s.names)
					m.connect()
					m.changes()
					if len(m.replicas) > 1 {
						m.kill()
					}
					for unit, value := range m.metrics {
						b.ReportMetric(value, unit)
					}
				})
			}
		})
	}
}

// process is a control plane in its own process.
type process struct {
	*plane
	cmd *exec.Cmd
}

// startProcess starts a control plane and waits until it is ready. The control plane ends with the benchmark, or
// when its stop is called.
func startProcess(b testing.TB, program, replica string, args ...string) *process {
	b.Helper()
	namespace(b, newClient(b), systemNamespace, nil)
	log, err := os.Create(filepath.Join(b.TempDir(), replica+".log"))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := detached(b)
	p := &process{plane: newPlane(b)}
	port := func(flag, address string) string { return fmt.Sprintf("--%s-port=%d", flag, portOf(b, address)) }
	p.cmd = exec.CommandContext(ctx, program, append([]string{
		"--store=kubernetes", "--kubeconfig=" + cluster.Kubeconfig, "--namespace=" + systemNamespace, "--replica=" + replica,
		port("webhook", p.webhook), port("health", p.health), port("agents", p.agents), port("admin", p.admin), port("peer", p.peers),
	}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = time.Minute
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	p.stop = func() {
		cancel()
		_ = p.cmd.Wait() // its log shows a failure
	}
	b.Cleanup(func() {
		p.stop()
		if text, err := os.ReadFile(log.Name()); b.Failed() {
			b.Logf("%s says: %s, %v", replica, text[max(0, len(text)-2000):], err)
		}
		_ = log.Close()
	})
	must.Poll(b, "the readiness of "+replica, p.ready)
	return p
}

// balanced is a Service whose EndpointSlice the benchmark writes, as the EndpointSlice controller
// would.
type balanced struct {
	namespace string
	name      string // of the Service in the mesh
	slices    discoveryclient.EndpointSliceInterface
	ready     bool            // whether the first endpoint is ready
	versions  map[bool]string // versions of the endpoints that proxies receive, by ready
}

func newBalanced(b *testing.B, in string) *balanced {
	b.Helper()
	client := newClient(b)
	namespace(b, client, in, nil)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
	if _, err := client.CoreV1().Services(in).Create(b.Context(), service, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	w := &balanced{namespace: in, name: "web_" + in + "_svc_80", slices: client.DiscoveryV1().EndpointSlices(in), versions: map[bool]string{}}
	if _, err := w.slices.Create(b.Context(), w.slice(), metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	return w
}

// slice has ten endpoints, of which only the first changes.
func (w *balanced) slice() *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
	}
	for i := range 10 {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.2.0.%d", 1+i)}, Conditions: discoveryv1.EndpointConditions{Ready: new(i > 0 || w.ready)},
		})
	}
	return s
}

// measured is a benchmark of some replicas.
type measured struct {
	*testing.B
	fleet    *fleet
	web      *balanced
	replicas []*process
	planes   []*plane           // the replicas as planes
	heard    chan time.Time     // when the benchmark's own watch received a change
	metrics  map[string]float64 // by unit; collected here because the benchmark loop discards earlier reports
}

func (m *measured) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func (m *measured) start(program string, names []string) {
	for _, name := range names {
		r := startProcess(m.B, program, name)
		m.replicas, m.planes = append(m.replicas, r), append(m.planes, r.plane)
	}
	introduce(m.B, newClient(m.B), names, m.planes)
	m.heard = make(chan time.Time, 10)
	own, err := m.web.slices.Watch(m.Context(), metav1.ListOptions{})
	m.must(err)
	go func() {
		for event := range own.ResultChan() {
			if event.Type == watch.Modified {
				m.heard <- time.Now()
			}
		}
	}()
	m.Cleanup(own.Stop)
}

// connect connects all proxies, and measures their memory.
func (m *measured) connect() {
	empty := m.memory()
	times := m.fleet.open(m.B, m.planes)
	m.metrics["connect-ns"] = float64(times[len(times)-1])
	full, n := m.memory(), float64(len(m.replicas))
	m.metrics["empty-bytes"], m.metrics["replica-bytes"] = empty/n, full/n
	m.metrics["proxy-bytes"] = (full - empty) / float64(len(m.fleet.proxies))
}

// memory returns the memory of all replicas at rest.
func (m *measured) memory() (sum float64) {
	for _, r := range m.replicas {
		bytes, err := proc.RestingRSS(m.Context(), r.cmd.Process.Pid)
		m.must(err)
		sum += bytes
	}
	return sum
}

// cpu returns the CPU time of some replicas at rest.
func (m *measured) cpu(replicas ...*process) (sum time.Duration) {
	for _, r := range replicas {
		spent, err := proc.RestingCPU(m.Context(), r.cmd.Process.Pid)
		m.must(err)
		sum += spent
	}
	return sum
}

// changes makes changes one after the other.
func (m *measured) changes() {
	for range 2 {
		m.learn()
	}
	var all arrivals.Changes
	var heard, served []time.Duration
	before := m.cpu(m.replicas...)
	for m.Loop() {
		times, after := m.change()
		all, heard, served = append(all, times), append(heard, after), append(served, times[len(times)-1]-after)
	}
	m.metrics["cpu-ns/op"] = float64(m.cpu(m.replicas...)-before) / float64(len(all))
	all.Report(m.B)
	for unit, times := range map[string][]time.Duration{"heard-ns": heard, "served-ns": served} {
		slices.Sort(times)
		m.metrics[unit] = float64(arrivals.Quantile(times, 0.5))
	}
}

// turn toggles the readiness of the first endpoint. heard waits until the watch receives the change, and
// returns when it did.
func (m *measured) turn() (heard func() time.Time) {
	m.web.ready = !m.web.ready
	_, err := m.web.slices.Update(m.Context(), m.web.slice(), metav1.UpdateOptions{})
	m.must(err)
	return func() (at time.Time) {
		select {
		case at = <-m.heard:
		case <-wait.Context(m).Done():
			m.Fatal("the watch has had no change")
		}
		return at
	}
}

// learn makes a change, and records the version that all proxies receive.
func (m *measured) learn() {
	old, err := m.fleet.agreed()
	m.must(err)
	heard := m.turn()
	must.Poll(m.B, "the same endpoints at all proxies", func(context.Context) error {
		version, err := m.fleet.agreed()
		if err == nil && version == old {
			err = errors.New("the endpoints are the old ones")
		}
		m.web.versions[m.web.ready] = version
		return err
	})
	heard()
}

// change makes a change, and returns when each proxy has sent its ACK, and when the watch received
// the change.
func (m *measured) change() (times []time.Duration, heard time.Duration) {
	change := arrivals.New(0, len(m.fleet.proxies), m.web.versions[!m.web.ready])
	m.fleet.change.Store(change)
	began := time.Now()
	at := m.turn()
	times, err := change.Wait(m.Context())
	m.must(err)
	return times, at().Sub(began)
}

// kill kills the second replica, and returns when all its proxies have connected to the first.
func (m *measured) kill() {
	survivor, lost := m.replicas[0], m.replicas[1]
	before := m.cpu(survivor)
	back := m.fleet.leave(lost.plane)
	m.must(lost.cmd.Process.Kill())
	times, err := back.Wait(m.Context())
	m.must(err)
	m.metrics["back-ns"], m.metrics["back-cpu-ns"] = float64(times[len(times)-1]), float64(m.cpu(survivor)-before)
	m.learn() // all connected proxies receive this change
}
