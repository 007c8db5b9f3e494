package faults

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

const (
	// drainTime is the drain time of terminated agents. Envoy closes the TCP connections that are still open
	// after it.
	drainTime = 12 * time.Second
	// slow is the duration of the requests in flight. Their proxy drains for as long.
	slow = 8 * time.Second
)

// TestDrain ends replicas by SIGTERM under load. Their endpoints are removed at once, no request fails, not even a
// request in flight, and TCP connections stay open until the drain time ends.
func TestDrain(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	args := []string{"--drain-time=" + drainTime.String()}
	proxies := must.Add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"b", "t"}},
		harness.ProxyOptions{Name: "b-1", Service: "b"}, harness.ProxyOptions{Name: "b-2", Service: "b", AgentArgs: args},
		harness.ProxyOptions{Name: "t-1", Service: "t", Protocol: "tcp", Banner: true},
		harness.ProxyOptions{Name: "t-2", Service: "t", Protocol: "tcp", Banner: true, AgentArgs: args})
	a, b1, b2, t1, t2 := proxies[0], proxies[1], proxies[2], proxies[3], proxies[4]
	endpoints(t, a, "b", b1, b2)
	endpoints(t, a, "t", t1, t2)
	load := startLoad(t, append(httpCallers(a, "b"), harness.NewBannerCaller(a.Outbounds["t"]))...)
	reaches(t, load, b2.Name)
	reaches(t, load, t2.Name)
	conn := connectTo(t, a.Outbounds["t"], t2.Name)
	inFlight := startSlow(t, a)

	started := time.Now()
	var running sync.WaitGroup
	for _, p := range []*harness.Proxy{b2, t2} {
		running.Go(func() {
			ctx := wait.Context(t)
			if err := p.Agent.Terminate(ctx); err != nil {
				t.Error(err)
			}
			t.Logf("%s ended after %s", p.Name, time.Since(started))
		})
	}
	endpoints(t, a, "b", b1)
	endpoints(t, a, "t", t1)
	for _, p := range []*harness.Proxy{b2, t2} {
		if p.Agent.Logged("drain done") == nil || p.Agent.Logged("drain cut short") == nil || !p.Agent.Running() {
			t.Errorf("the endpoint of %s was removed after its drain, want during the drain", p.Name)
		}
	}
	t.Logf("the endpoints were removed after %d ms", time.Since(started).Milliseconds())
	if instances := inFlight(); instances[b2.Name] == 0 {
		t.Errorf("the requests in flight were answered by %v, want at least one by %s", instances, b2.Name)
	}
	lived := livesUntilClosed(conn, started)
	t.Logf("the TCP connection lived for %s", lived)
	if lived < drainTime-time.Second {
		t.Errorf("the TCP connection lived for %s of the drain, want the drain time, %s", lived, drainTime)
	}
	running.Wait()
	must.Hold(t, load)
	for _, p := range []*harness.Proxy{b2, t2} {
		if pids, err := p.Processes(); err != nil || len(pids) > 0 {
			t.Errorf("processes %v, %v of %s run after its agent", pids, err, p.Name)
		}
	}
}

// connectTo opens connections until the instance sends its banner on one.
func connectTo(t *testing.T, at, instance string) net.Conn {
	t.Helper()
	var conn net.Conn
	must.Poll(t, "a connection to "+instance, func(ctx context.Context) error {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
		if err != nil {
			return err
		}
		deadline, _ := ctx.Deadline()
		if err := c.SetDeadline(deadline); err != nil {
			return err
		}
		greeting, err := bufio.NewReader(c).ReadString('\n')
		if err == nil && !strings.Contains(greeting, instance) {
			err = fmt.Errorf("it is to %q", greeting)
		}
		if err != nil {
			return errors.Join(err, c.Close())
		}
		conn = c
		return nil
	})
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// startSlow starts slow requests, and returns once both replicas handle some. The returned function waits for them
// and counts the responses by instance.
func startSlow(t *testing.T, a *harness.Proxy) func() map[string]int {
	t.Helper()
	var running sync.WaitGroup
	var mu sync.Mutex
	instances := map[string]int{}
	for range 8 {
		running.Go(func() {
			c := harness.NewHTTPCaller("http://"+a.Outbounds["b"]+"/slow?for="+slow.String(), false, false)
			defer c.Close()
			ctx := wait.Context(t)
			instance, err := c.Call(ctx)
			if err != nil {
				t.Errorf("a request in flight failed: %v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			instances[instance]++
		})
	}
	must.Poll(t, "the requests to be in flight", func(ctx context.Context) error {
		stats, err := a.Stats(ctx, `cluster\.b\.upstream_rq_active`)
		if err == nil && stats["cluster.b.upstream_rq_active"] < 8 {
			err = fmt.Errorf("%v", stats)
		}
		return err
	})
	return func() map[string]int {
		running.Wait()
		return instances
	}
}

// livesUntilClosed uses a connection until it is closed, and returns the time from started to the
// close.
func livesUntilClosed(conn net.Conn, started time.Time) time.Duration {
	reader := bufio.NewReader(conn)
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		if _, err := fmt.Fprintln(conn, "still here"); err != nil {
			return time.Since(started)
		}
		if _, err := reader.ReadString('\n'); err != nil {
			return time.Since(started)
		}
		<-ticker.C
	}
}

// TestDrainIsKept kills an agent while it drains. The drain survives restarts of the control plane until the agent
// sends another Hello.
func TestDrainIsKept(t *testing.T) {
	t.Parallel()
	m := newMesh(t, 0)
	proxies := must.Add(t, m,
		harness.ProxyOptions{Name: "a-1", Service: "a", Outbound: []string{"t"}},
		harness.ProxyOptions{Name: "t-1", Service: "t", Protocol: "tcp", Banner: true},
		harness.ProxyOptions{Name: "t-2", Service: "t", Protocol: "tcp", Banner: true})
	a, t1, t2 := proxies[0], proxies[1], proxies[2]
	endpoints(t, a, "t", t1, t2)
	load := startLoad(t, harness.NewBannerCaller(a.Outbounds["t"]))
	reaches(t, load, t2.Name)
	connectTo(t, a.Outbounds["t"], t2.Name) // keeps the drain from ending

	must.Do(t, terminate(t2.Agent))
	endpoints(t, a, "t", t1)
	restart := func() {
		m.ControlPlane.Kill()
		must.Do(t, m.StartControlPlane(t.Context()))
		synced(t, a, t1)
		endpoints(t, a, "t", t1)
	}
	restart() // the agent reports the drain again
	must.Poll(t, "the agent that drains to come back", func(ctx context.Context) error {
		s, err := t2.State(ctx)
		if err == nil && (s.Agent == nil || !s.Draining) {
			err = fmt.Errorf("it is %+v", s)
		}
		return err
	})
	before := load.Report().Instances[t2.Name]
	t2.Agent.Kill()
	restart() // the agent is dead
	must.Make(t, load, 20)
	if now := load.Report().Instances[t2.Name]; now != before {
		t.Errorf("%s drains, and was called %d times", t2.Name, now-before)
	}
	must.Do(t, t2.StartAgent(t.Context()))
	must.Do(t, t2.WaitReady(t.Context()))
	endpoints(t, a, "t", t1, t2)
	reaches(t, load, t2.Name)
	must.Hold(t, load)
}
