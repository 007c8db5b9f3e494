package hostile

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/test/adsclient"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
	"github.com/sonde-mesh/sonde/xds/resource"
)

var soakTime = flag.Duration("soak", 10*time.Second, "how long TestSoak attacks")

const (
	// soakProxies is the number of ADS streams.
	soakProxies = 100
	// quietTime is the longest time with changes before the attack.
	quietTime = time.Minute
	// soakPause is the pause between two changes.
	soakPause = 200 * time.Millisecond
	// changeLimit is the timeout for the last ACK of a change.
	changeLimit = 10 * time.Second
)

// fleet is all proxies.
type fleet struct {
	proxies []*soakProxy
	arrived chan struct{}
	running sync.WaitGroup
}

// soakProxy is one proxy, and the Observer of its stream.
type soakProxy struct {
	fleet   *fleet
	options adsclient.Options
	version atomic.Value // string: the version of the changing service's endpoints
	news    bool         // the current response contains the change; used only by the stream's goroutine
	streams atomic.Int32
}

// Connected implements adsclient.Observer.
func (p *soakProxy) Connected() { p.streams.Add(1) }

// Resource implements adsclient.Observer.
func (p *soakProxy) Resource(t resource.Type, name, version []byte) {
	if t == resource.Endpoint && strings.Contains(string(name), "backend") {
		p.news = p.version.Swap(string(version)) != string(version)
	}
}

// Acked implements adsclient.Observer.
func (p *soakProxy) Acked() {
	if p.news {
		p.news = false
		p.fleet.arrived <- struct{}{}
	}
}

func (p *soakProxy) live(ctx context.Context) {
	for ctx.Err() == nil {
		_ = adsclient.Run(ctx, p.options) // the test counts streams
	}
}

// newFleet connects all proxies, and waits until they have received the service.
func newFleet(t *testing.T, x *target, id *sondecp.Identity) *fleet {
	t.Helper()
	f := &fleet{arrived: make(chan struct{}, 10*soakProxies)}
	catalog := adsclient.NewCatalog()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() {
		cancel()
		f.running.Wait()
	})
	for n := range soakProxies {
		config, err := id.ClientTLS(subject(soakName(n)))
		must.Do(t, err)
		p := &soakProxy{fleet: f}
		p.version.Store("")
		p.options = adsclient.Options{Address: x.Agents, TLS: config, Node: "default/" + soakName(n), State: adsclient.NewState(catalog), Observer: p}
		f.proxies = append(f.proxies, p)
		f.running.Go(func() { p.live(ctx) })
	}
	if _, err := f.lastACK(time.Now()); err != nil {
		t.Fatal(err)
	}
	return f
}

// lastACK waits until all proxies have ACKed a change, and returns the duration.
func (f *fleet) lastACK(begin time.Time) (time.Duration, error) {
	limit := time.NewTimer(changeLimit)
	defer limit.Stop()
	for n := range f.proxies {
		select {
		case <-f.arrived:
		case <-limit.C:
			return 0, fmt.Errorf("%d of %d proxies have sent their ACK after %s", n, len(f.proxies), changeLimit)
		}
	}
	return time.Since(begin), nil
}

func (f *fleet) streams() (n int) {
	for _, p := range f.proxies {
		n += int(p.streams.Load())
	}
	return n
}

// change changes the service again and again for a while. It returns how long each change took until the last ACK,
// shortest first.
func (f *fleet) change(t *testing.T, m *harness.Machine, from int, during time.Duration) (took []time.Duration) {
	t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(soakPause) {
		begin := time.Now()
		must.Do(t, putBackend(m, from+len(took)))
		d, err := f.lastACK(begin)
		must.Do(t, err)
		took = append(took, d)
	}
	slices.Sort(took)
	return took
}

// TestSoak runs all attacks at once while proxies receive changes.
func TestSoak(t *testing.T) {
	x := newTarget(t, harness.Options{Prepare: prepareMesh})
	id, err := sondecp.OpenIdentity(x.StateDir())
	must.Do(t, err)
	f := newFleet(t, x, id)
	quiet := f.change(t, x.Machine, 1, min(*soakTime, quietTime))
	before := x.resources(t)

	stop := startAttackers(t, x.aims())
	attacked := f.change(t, x.Machine, 1+len(quiet), *soakTime)
	stop()
	t.Logf("last ACK of a change: median %s of %d, %s of %d while attacked; longest %s and %s", median(quiet), len(quiet), median(attacked), len(attacked),
		quiet[len(quiet)-1], attacked[len(attacked)-1])
	closed := x.closed(t)
	t.Logf("the most memory was %d MiB, and of connections of attackers %v were closed", x.memory.Peak(t)>>20, closed)
	if closed == 0 {
		t.Error("the attacks had no effect")
	}
	if n := x.memory.Killed(t); n > 0 || !x.ControlPlane.Running() {
		t.Errorf("the control plane has ended, %d processes were killed for lack of memory", n)
	}
	if n := f.streams(); n != soakProxies {
		t.Errorf("%d proxies have opened %d streams, want one each", soakProxies, n)
	}
	must.Poll(t, "the attackers' connections and memory to be released", func(context.Context) error {
		if now := x.resources(t); now.files > before.files+10 || now.goroutines > before.goroutines+20 || now.memory > before.memory+before.memory/2 {
			return fmt.Errorf("%+v, and before the attack %+v", now, before)
		}
		return nil
	})
}

func median(sorted []time.Duration) time.Duration { return sorted[len(sorted)/2] }

// resources are the control plane's resources in use.
type resources struct{ files, goroutines, memory float64 }

func (x *target) resources(t *testing.T) resources {
	t.Helper()
	m, err := x.Metrics(t.Context())
	must.Do(t, err)
	return resources{m["process_open_fds"], m["go_goroutines"], m["go_memstats_heap_inuse_bytes"] + m["go_memstats_stack_inuse_bytes"]}
}

// closed returns how many connections the control plane has closed on its agents' port.
func (x *target) closed(t *testing.T) (n float64) {
	t.Helper()
	m, err := x.Metrics(t.Context())
	must.Do(t, err)
	for name, value := range m {
		if strings.HasPrefix(name, "sonde_identity_connections_closed_total{") {
			n += value
		}
	}
	return n
}
