package watchdog

import (
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/memorytest"
	"github.com/sonde-mesh/sonde/test/apiserver"
	"github.com/sonde-mesh/sonde/test/bench/proc"
	"github.com/sonde-mesh/sonde/test/harness"
)

// cluster is the API server of all benchmarks.
var cluster *apiserver.Cluster

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" {
		os.Exit(m.Run()) // this package has no tests
	}
	os.Exit(apiserver.Run(m, &cluster))
}

const (
	// window is the measured time of each iteration: some probes of each cluster.
	window = 60 * time.Second
)

// BenchmarkSeen measures a watchdog whose clusters are all seen, with the default settings except for the grace
// period, because the benchmark's nodes may be late.
func BenchmarkSeen(b *testing.B) {
	program, err := harness.BuildInto(b.Context(), b.TempDir(), "cmd/sonde-watchdog")
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []struct{ clusters, nodes int }{{5, 100}, {100, 100}, {500, 100}, {1, 5000}} {
		b.Run(fmt.Sprintf("clusters=%d/nodes=%d", size.clusters, size.nodes), func(b *testing.B) {
			to := mustHost(b)
			w := newWorld(b, size.clusters, size.nodes, newForwarder(b, apiserver.OwnAddress(b), to))
			own := newForwarder(b, "127.0.0.1", to)
			p := start(b, program, own)
			p.seen(b, w)
			before, cpu := p.read(b), p.cpu(b)
			w.to.connections.Store(0)
			w.to.gotten.Store(0)
			w.to.sent.Store(0)
			own.gotten.Store(0)
			own.sent.Store(0)
			began := time.Now()
			for b.Loop() {
				time.Sleep(window)
			}
			took := time.Since(began).Seconds()
			after := p.read(b)
			probes := after["sonde_watchdog_probe_duration_seconds_count"] - before["sonde_watchdog_probe_duration_seconds_count"]
			memory, err := memorytest.Of(p.cmd.Process.Pid)
			if err != nil {
				b.Fatal(err)
			}
			requests := float64(w.to.connections.Load())
			b.ReportMetric(0, "ns/op") // the length of the window
			b.ReportMetric(memory.RssAnon, "RssAnon-B")
			b.ReportMetric(float64(peak(b, p.cmd.Process.Pid)), "peak-B")
			b.ReportMetric(after["go_memstats_heap_inuse_bytes"], "heap-B")
			b.ReportMetric(probes/took, "probes/s")
			b.ReportMetric(requests/took, "requests/s")
			b.ReportMetric(requests/probes, "requests/probe")
			b.ReportMetric(float64(w.to.gotten.Load())/took, "read-B/s")
			b.ReportMetric(float64(w.to.gotten.Load())/probes, "read-B/probe")
			b.ReportMetric(float64(w.to.sent.Load())/took, "sent-B/s")
			b.ReportMetric(float64(own.gotten.Load()+own.sent.Load())/took, "own-B/s")
			b.ReportMetric((after["sonde_watchdog_probe_duration_seconds_sum"]-before["sonde_watchdog_probe_duration_seconds_sum"])/probes, "sec/probe")
			b.ReportMetric((p.cpu(b)-cpu).Seconds()/took, "CPU-sec/s")
			b.ReportMetric(float64(w.renewed.Load())/time.Since(w.began).Seconds(), "renewals/s")
		})
	}
}

func mustHost(b *testing.B) string {
	b.Helper()
	u, err := url.Parse(cluster.Config.Host)
	if err != nil {
		b.Fatal(err)
	}
	return u.Host
}

// process is a watchdog in its own process.
type process struct {
	cmd    *exec.Cmd
	health string
}

// start starts a watchdog that reaches its own API server by a forwarder. It ends with the
// benchmark.
func start(b *testing.B, program string, own *forwarder) *process {
	b.Helper()
	kubeconfig := filepath.Join(b.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(kubeconfig, own.address, cluster.Config.BearerToken); err != nil {
		b.Fatal(err)
	}
	log, err := os.Create(filepath.Join(b.TempDir(), "watchdog.log"))
	if err != nil {
		b.Fatal(err)
	}
	addresses, release, err := harness.FreeAddresses(1)
	if err != nil {
		b.Fatal(err)
	}
	if err := release(); err != nil {
		b.Fatal(err)
	}
	p := &process{health: "http://" + addresses[0]}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	p.cmd = exec.CommandContext(ctx, program, "--kubeconfig="+kubeconfig, "--namespace="+namespace(0), "--replica=a", "--health-addr="+addresses[0])
	p.cmd.Stderr = log
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = time.Minute
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cancel()
		_ = p.cmd.Wait() // its log shows a failure
		if text, err := os.ReadFile(log.Name()); b.Failed() {
			b.Logf("it says: %s, %v", text[max(0, len(text)-2000):], err)
		}
		_ = log.Close()
	})
	return p
}

func (p *process) cpu(b *testing.B) time.Duration {
	b.Helper()
	t, err := proc.CPU(p.cmd.Process.Pid)
	if err != nil {
		b.Fatal(err)
	}
	return t.Ran
}

// peak returns the peak memory of a process, including mapped files.
func peak(b *testing.B, pid int) (bytes int64) {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, is := strings.CutPrefix(line, "VmHWM:"); is {
			if _, err := fmt.Sscan(value, &bytes); err != nil {
				b.Fatal(err)
			}
			return bytes * 1024
		}
	}
	b.Fatal("the kernel reports no VmHWM")
	return 0
}
