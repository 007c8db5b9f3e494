package probesecurity

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os/exec"
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

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/memorytest"
)

const (
	// floodRequests is the size of a flood, at 10,000 per second if the machine can; floodTime is its
	// length if it cannot.
	floodRequests = 50_000
	floodTime     = 20 * time.Second
	// checksPerSecond and checksBurst are the limits of the probe handler.
	checksPerSecond, checksBurst = 10, 4
)

// inFlood is the agent's memory limit in a flood: its limits on connections and requests allow for some 45
// MiB.
var inFlood = memorytest.Memory{RssAnon: 64 << 20, VmRSS: 72 << 20}

// TestFlood floods one of four probes, and makes all four probes as the kubelet does.
func TestFlood(t *testing.T) {
	p := newPod(t)
	var healthy atomic.Bool
	live, table := floodedApps(t, p, &healthy)
	a := p.startAgent(p.freePort(), table)
	watch := watchMemory(t, a)
	rest := watch.now()
	begin, before := time.Now(), a.cpu(a.processes()...)
	flooding, flooded := startFlooder(t, a, table[0], floodRequests)

	var kubelets []*kubelet
	for _, entry := range table {
		kubelets = append(kubelets, &kubelet{t: t, a: a, path: entry.VirtualPath(), id: entry.ID, timeout: time.Second})
	}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for round := 0; flooding(); round++ {
		healthy.Store(round%3 != 2)
		// A check that began before the application changed is shared until it ends. The next check shows that it has
		// ended.
		if !live.askedAgain(flooding) {
			break
		}
		askAll(kubelets, round, healthy.Load())
		<-ticker.C
	}
	result := <-flooded
	took, used := time.Since(begin), a.cpu(a.processes()...).Since(before)
	highest, after := watch.stop(), watch.now()

	t.Logf("the agent ran %s and waited %s for a processor", used.Ran.Round(time.Millisecond), used.Waited.Round(time.Millisecond))
	hadCPU := used.Waited < 2*used.Ran // the flooder uses as much CPU as the agent
	for _, k := range kubelets {
		k.report(hadCPU)
	}
	n := atMost(t, live)
	t.Logf("flood: %+v", result)
	t.Logf("reached the application: %d times in %s (%.1f per second)", n, took.Round(time.Millisecond), float64(n)/took.Seconds())
	t.Logf("memory at rest: %s; maximum in the flood: %s; after the flood: %s", rest, highest, after)
	if highest.sum().Exceeds(inFlood) {
		t.Errorf("memory in a flood: %v, want at most %v", highest, inFlood)
	}
	if result.Success == 0 {
		t.Errorf("no request of the flood was answered with success: %+v", result)
	}
}

// floodedApps starts the applications of four probes. The first is healthy or not, and the second hangs until the
// test ends.
func floodedApps(t *testing.T, p *pod, healthy *atomic.Bool) (live *app, table mesh.ProbeTable) {
	t.Helper()
	live = p.listen(0, func(c net.Conn, _ string) {
		text := ok
		if !healthy.Load() {
			text = strings.Replace(ok, "200 OK", "500 Oh", 1)
		}
		_, _ = io.WriteString(c, text) // the agent may have closed the connection
	})
	released := make(chan struct{})
	slow := p.listen(0, func(net.Conn, string) { <-released })
	t.Cleanup(func() { close(released) }) // runs before the application's cleanup, which waits for it
	tcp := p.listen(0, answer(ok))
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	rpc := p.serveGRPC(server)
	return live, mesh.ProbeTable{
		{ID: "live", TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Port: int32(live.port), Path: "/live"}},
		{ID: "slow", TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Port: int32(slow.port), Path: "/"}},
		{ID: "tcp", TimeoutSeconds: 1, TCPSocket: &mesh.TCPSocketProbe{Port: int32(tcp.port)}},
		{ID: "rpc", TimeoutSeconds: 1, GRPC: &mesh.GRPCProbe{Port: int32(rpc)}},
	}
}

// askAll makes all probes at once.
func askAll(kubelets []*kubelet, round int, healthy bool) {
	var asking sync.WaitGroup
	for _, k := range kubelets {
		asking.Go(func() {
			want := probe.Success
			if k.id == "slow" || k.id == "live" && !healthy {
				want = probe.Failure
			}
			k.check(round, want)
		})
	}
	asking.Wait()
}

// askedAgain waits for the application's next request. It returns false if none arrived since the flood ended.
func (a *app) askedAgain(flooding func() bool) bool {
	_, _, before := a.seen()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for flooding() {
		if _, _, now := a.seen(); len(now) > len(before) {
			return true
		}
		<-ticker.C
	}
	return false
}

// atMost fails the test if an application got more than 10 requests per second after the burst.
func atMost(t *testing.T, a *app) int {
	t.Helper()
	const jitter = 200 * time.Millisecond // tolerance for the application's clock
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

// TestSlowProbe has many callers of a hanging probe, while other probes are answered.
func TestSlowProbe(t *testing.T) {
	t.Parallel()
	p := newPod(t)
	released := make(chan struct{})
	defer close(released)
	hangs := p.listen(0, func(net.Conn, string) { <-released })
	quick := p.listen(0, answer(ok))
	const others = 20
	table := mesh.ProbeTable{{ID: "hangs", TimeoutSeconds: 3, HTTPGet: &mesh.HTTPGetProbe{Port: int32(hangs.port), Path: "/"}}}
	for i := range others { // each below the limit of one application
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
	var longest time.Duration
	for _, probe := range table[1:] {
		for range checksBurst {
			begin := time.Now()
			if s := statusOf(a.probe(probe.VirtualPath(), probe.ID)); s != "200" {
				t.Errorf("another probe is answered %q, want 200", s)
			}
			longest = max(longest, time.Since(begin))
		}
	}
	waiting.Wait()
	if n, _, _ := hangs.seen(); n != 1 {
		t.Errorf("200 callers made %d checks of the probe that hangs, want 1", n)
	}
	t.Logf("the longest probe beside 200 callers of a hanging probe took %s", longest)
}

// serveGRPC runs s on a port of the pod.
func (p *pod) serveGRPC(s *grpc.Server) int {
	p.t.Helper()
	l := p.listener(0)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // Stop ends it
	}()
	p.t.Cleanup(func() { s.Stop(); <-done })
	return l.Addr().(*net.TCPAddr).Port
}

// floodResult is the output of the flooder.
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
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	cmd := exec.CommandContext(ctx, flooderProgram, "--target="+a.Address, "--path="+probe.VirtualPath(), "--id="+probe.ID,
		"--sources="+strings.Join(sources, ","), fmt.Sprintf("--requests=%d", requests), "--for="+floodTime.String())
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
