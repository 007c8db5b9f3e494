package probesecurity

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/kubernetes/pkg/probe"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	// floodRequests of one flood, at 10,000 per second where the machine can.
	floodRequests = 50_000
	// What an agent may have in a flood, in KiB: its limits on connections and requests allow for some 45 MiB.
	floodRSSAnon, floodVmRSS = 64 << 10, 72 << 10
	// checksPerSecond and checksBurst are the handler's, from design.md.
	checksPerSecond, checksBurst = 10, 4
)

// kubelet asks for one probe once per second, with the kubelet's own code.
type kubelet struct {
	t       *testing.T
	a       *agent
	path    string
	id      string
	timeout time.Duration // the user's
	asked   int
	unknown int // times that the verdict was to be discarded
	longest time.Duration
}

// ask asks once, and returns the kubelet's verdict: success, warning, failure, or unknown where it discards what it got.
func (k *kubelet) ask() probe.Result {
	r, err := http.NewRequestWithContext(k.t.Context(), http.MethodGet, "http://"+k.a.address+k.path, nil)
	if err != nil {
		k.t.Error(err)
		return probe.Unknown
	}
	r.Header.Set("User-Agent", "kube-probe/1.36")
	r.Header.Set(mesh.ProbeHeader, k.id)
	begin := time.Now()
	result, _, err := httpprobe.New(false).Probe(r, k.timeout+time.Second)
	took := time.Since(begin)
	k.longest = max(k.longest, took)
	k.asked++
	if err != nil {
		return probe.Unknown
	}
	return result
}

// check asks once, for a verdict that is known.
func (k *kubelet) check(round int, want probe.Result) {
	got := k.ask()
	// The probe that hangs uses up its whole timeout: half a second later a busy agent has to say that it does not know,
	// which is discarded.
	if k.id == "slow" && got == probe.Unknown {
		k.unknown++
		return
	}
	if got != want {
		k.t.Errorf("round %d: verdict of %q = %s, want %s", round, k.id, got, want)
	}
}

// report fails the test where the kubelet did not learn enough.
func (k *kubelet) report() {
	if k.asked < 3 { // that each was in time is the kubelet's own timeout's to say
		k.t.Errorf("the kubelet asked for %q %d times: the flood was over too soon", k.id, k.asked)
	}
	if 2*k.unknown > k.asked {
		k.t.Errorf("%d of %d verdicts of %q were to be discarded", k.unknown, k.asked, k.id)
	}
	k.t.Logf("the kubelet's %d probes of %q: %d discarded, the longest took %s", k.asked, k.id, k.unknown, k.longest.Round(time.Millisecond))
}

// TestFlood floods one probe of four, and asks for all of them as the kubelet does.
func TestFlood(t *testing.T) {
	p := newPod(t)
	var healthy atomic.Bool
	healthy.Store(true)
	live := p.listen(0, func(c net.Conn, _ string) {
		text := ok
		if !healthy.Load() {
			text = strings.Replace(ok, "200 OK", "500 Oh", 1)
		}
		_, _ = io.WriteString(c, text) // the agent may have left
	})
	released := make(chan struct{})
	defer close(released)
	slow := p.listen(0, func(net.Conn, string) { <-released })
	tcp := p.listen(0, answer(ok))
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	rpc := p.serveGRPC(server)
	table := mesh.ProbeTable{
		{ID: "live", TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Port: int32(live.port), Path: "/live"}},
		{ID: "slow", TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Port: int32(slow.port), Path: "/"}},
		{ID: "tcp", TimeoutSeconds: 1, TCPSocket: &mesh.TCPSocketProbe{Port: int32(tcp.port)}},
		{ID: "rpc", TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: int32(rpc)}},
	}
	a := p.startAgent(p.freePort(), table)
	watch := watchMemory(t, a)
	rest := watch.now()
	begin := time.Now()
	flooding, flooded := startFlooder(t, a, table[0], floodRequests)

	var kubelets []*kubelet
	for _, entry := range table {
		kubelets = append(kubelets, &kubelet{t: t, a: a, path: entry.VirtualPath(), id: entry.ID, timeout: time.Second})
	}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for round := 0; flooding(); round++ {
		sick := round%3 == 2
		healthy.Store(!sick)
		// A check that began before the application changed may be shared until it ends.
		settled := time.After(200 * time.Millisecond)
		<-settled
		var asking sync.WaitGroup
		for i, k := range kubelets {
			asking.Go(func() {
				want := probe.Success
				if i == 1 || i == 0 && sick {
					want = probe.Failure
				}
				k.check(round, want)
			})
		}
		asking.Wait()
		<-ticker.C
	}
	result := <-flooded
	took := time.Since(begin)
	highest, after := watch.stop(), watch.now()

	for _, k := range kubelets {
		k.report()
	}
	n := atMost(t, live)
	t.Logf("flood: %+v", result)
	t.Logf("reached the application: %d times in %s (%.1f per second)", n, took.Round(time.Millisecond), float64(n)/took.Seconds())
	t.Logf("memory at rest: %s; highest in the flood: %s; after it: %s", rest, highest, after)
	if m := highest.sum(); m.rssAnon > floodRSSAnon || m.vmRSS > floodVmRSS {
		t.Errorf("memory in a flood: RssAnon %d KiB, VmRSS %d KiB, want at most %d and %d", m.rssAnon, m.vmRSS, floodRSSAnon, floodVmRSS)
	}
	if result.Success == 0 {
		t.Errorf("no request of the flood was answered with success: %+v", result)
	}
}

// atMost fails the test if an application was asked more often than 10 times per second, and the burst.
func atMost(t *testing.T, a *app) int {
	t.Helper()
	const jitter = 200 * time.Millisecond // of the clock that the application reads
	_, times, _ := a.seen()
	for i := range times {
		for j := i + 1; j < len(times); j++ {
			span := times[j].Sub(times[i]) + jitter
			if most := checksPerSecond*span.Seconds() + checksBurst; float64(j-i+1) > most {
				t.Errorf("%d checks in %s, want at most %.0f", j-i+1, span, most)
				return len(times)
			}
		}
	}
	return len(times)
}

// TestSlowProbe has many callers of a probe that hangs, while others are answered.
func TestSlowProbe(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	released := make(chan struct{})
	defer close(released)
	hangs := p.listen(0, func(net.Conn, string) { <-released })
	quick := p.listen(0, answer(ok))
	const others = 20
	table := mesh.ProbeTable{{ID: "hangs", TimeoutSeconds: 3, HTTPGet: &mesh.HTTPGetProbe{Port: int32(hangs.port), Path: "/"}}}
	for i := range others { // of one application: each below its own limit
		table = append(table, mesh.Probe{ID: strconv.Itoa(i), TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Port: int32(quick.port), Path: fmt.Sprintf("/%d", i)}})
	}
	a := p.startAgent(p.freePort(), table)
	var waiting sync.WaitGroup
	for range 200 {
		waiting.Go(func() {
			if s := statusOf(a.probe(table[0].VirtualPath(), "hangs")); s != "503" {
				t.Errorf("a probe that hangs is answered %q, want 503", s)
			}
		})
	}
	for deadline := time.Now().Add(callLimit); ; {
		if n, _, _ := hangs.seen(); n > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the probe that hangs is not asked")
		}
		<-time.After(time.Millisecond)
	}
	var times []time.Duration
	for _, probe := range table[1:] {
		for range checksBurst {
			begin := time.Now()
			if s := statusOf(a.probe(probe.VirtualPath(), probe.ID)); s != "200" {
				t.Errorf("another probe is answered %q, want 200", s)
			}
			times = append(times, time.Since(begin))
		}
	}
	waiting.Wait()
	if n, _, _ := hangs.seen(); n != 1 {
		t.Errorf("200 callers made %d checks of the probe that hangs, want 1", n)
	}
	slices.Sort(times)
	median, last := times[len(times)/2], times[len(times)-1]
	t.Logf("%d probes beside 200 callers of one that hangs: median %s, longest %s", len(times), median, last)
	if median > 50*time.Millisecond || last > 900*time.Millisecond {
		t.Errorf("other probes took %s in the median and %s at most, want at most 50ms and 900ms", median, last)
	}
}

// serveGRPC runs s on a port of the pod.
func (p *pod) serveGRPC(s *grpc.Server) int {
	p.t.Helper()
	l := p.listener(0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // it ends with Stop
	}()
	p.t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().(*net.TCPAddr).Port
}

// floodResult is what the flooder prints.
type floodResult struct {
	Seconds, Rate                                                              float64
	Requests, Success, Errored, Failure, Ended, Slow, Bombs, Idle, Half, Reset int64
}

// startFlooder floods a probe from 16 addresses.
func startFlooder(t *testing.T, a *agent, probe mesh.Probe, requests int) (running func() bool, result <-chan floodResult) {
	t.Helper()
	var sources []string
	for i := range 16 {
		sources = append(sources, fmt.Sprintf("127.251.0.%d", 1+i))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	cmd := exec.CommandContext(ctx, flooderProgram, "--target="+a.address, "--path="+probe.VirtualPath(), "--id="+probe.ID,
		"--sources="+strings.Join(sources, ","), fmt.Sprintf("--requests=%d", requests))
	done := make(chan floodResult, 1)
	ended := make(chan struct{})
	go func() {
		defer cancel()
		defer close(ended)
		var r floodResult
		out, err := cmd.Output()
		if err == nil {
			err = json.Unmarshal(out, &r)
		}
		if err != nil {
			t.Errorf("flood: %v", err)
		}
		done <- r
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return func() bool {
		select {
		case <-ended:
			return false
		default:
			return true
		}
	}, done
}

// usage is the memory of both processes.
type usage struct{ guard, worker memory }

// sum is what counts: what is private adds up, and of what is shared the larger one has all.
func (u usage) sum() memory {
	return memory{rssAnon: u.guard.rssAnon + u.worker.rssAnon, vmRSS: max(u.guard.vmRSS, u.worker.vmRSS)}
}

func (u usage) String() string {
	return fmt.Sprintf("RssAnon %.1f MiB (guard %.1f, worker %.1f), VmRSS %.1f MiB (guard %.1f)", mib(u.sum().rssAnon), mib(u.guard.rssAnon), mib(u.worker.rssAnon), mib(u.sum().vmRSS), mib(u.guard.vmRSS))
}

func mib(kib int) float64 { return float64(kib) / 1024 }

// memoryWatch notes the highest memory of an agent.
type memoryWatch struct {
	t     *testing.T
	pids  []int
	end   chan struct{}
	ended chan usage
}

func watchMemory(t *testing.T, a *agent) *memoryWatch {
	w := &memoryWatch{t: t, pids: a.processes(), end: make(chan struct{}), ended: make(chan usage, 1)}
	go func() {
		var highest usage
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			now := w.now()
			highest = usage{highest.guard.max(now.guard), highest.worker.max(now.worker)}
			select {
			case <-w.end:
				w.ended <- highest
				return
			case <-ticker.C:
			}
		}
	}()
	return w
}

func (w *memoryWatch) now() usage {
	var u usage
	for i, m := range []*memory{&u.guard, &u.worker} {
		var err error
		if *m, err = memoryOf(w.pids[i]); err != nil {
			w.t.Error(err)
		}
	}
	return u
}

func (w *memoryWatch) stop() usage {
	close(w.end)
	return <-w.ended
}
