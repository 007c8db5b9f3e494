//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/harness"
)

// balancer is a load balancer like a cloud's: it checks each proxy once a second, and sends new connections
// only to healthy proxies.
type balancer struct {
	port   uint32 // the proxies' health port for load balancers
	cancel context.CancelFunc
	wait   sync.WaitGroup
	next   atomic.Uint64

	mu      sync.Mutex
	targets map[string]*target // by name of the pod
	broken  []string           // long connections that broke, although they should not have
	breaks  int                // all that broke
}

// target is one proxy.
type target struct {
	name, address string
	healthy       bool
	since         time.Time // of the current health
	changes       int
	reason        string // why it is unhealthy
}

// lbDrainTime is sonde.dev/lb-drain-time in these tests. learnTime is how long a load balancer may take to detect a
// proxy's change.
const (
	lbDrainTime = 5 * time.Second
	learnTime   = 2 * time.Second
)

func newBalancer(port uint32) *balancer { return &balancer{port: port, targets: map[string]*target{}} }

// setTargets replaces the targets, by name and address. A new target starts unhealthy.
func (b *balancer) setTargets(pods map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, address := range pods {
		if b.targets[name] == nil {
			b.targets[name] = &target{name: name, address: address, since: time.Now()}
		}
	}
	for name := range b.targets {
		if _, there := pods[name]; !there {
			delete(b.targets, name)
		}
	}
}

// start checks the targets, and opens short connections to them at a rate per second, and a number of long
// connections.
func (b *balancer) start(ctx context.Context, rate, long int) *harness.Load {
	ctx, b.cancel = context.WithCancel(ctx)
	b.wait.Go(func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			b.ask(ctx)
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
	for range long {
		b.wait.Go(func() { b.hold(ctx) })
	}
	const callers = 20
	var all []harness.Caller
	for range callers {
		all = append(all, newConnections{b})
	}
	return harness.StartLoad(ctx, time.Duration(callers)*time.Second/time.Duration(rate), all...)
}

func (b *balancer) stop() {
	b.cancel()
	b.wait.Wait()
}

// ask checks all targets at once.
func (b *balancer) ask(ctx context.Context) {
	b.mu.Lock()
	addresses := map[string]string{}
	for name, t := range b.targets {
		addresses[name] = t.address
	}
	b.mu.Unlock()
	var asked sync.WaitGroup
	for name, address := range addresses {
		asked.Go(func() {
			reason := b.askOne(ctx, address)
			b.mu.Lock()
			defer b.mu.Unlock()
			t := b.targets[name]
			if t == nil || t.address != address || ctx.Err() != nil {
				return
			}
			if t.healthy != (reason == "") {
				t.healthy, t.since, t.changes = reason == "", time.Now(), t.changes+1
			}
			t.reason = reason
		})
	}
	asked.Wait()
}

// askOne returns why a proxy is unhealthy.
func (b *balancer) askOne(ctx context.Context, address string) string {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+mesh.JoinHostPort(address, b.port)+"/healthz", nil)
	if err != nil {
		return err.Error()
	}
	got, err := control.Do(r)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = got.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(got.Body, 4<<10))
	if got.StatusCode != http.StatusOK {
		return strings.TrimSpace(string(body))
	}
	return ""
}

// pick returns the next healthy target.
func (b *balancer) pick() (target, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var healthy []*target
	for _, t := range b.targets {
		if t.healthy {
			healthy = append(healthy, t)
		}
	}
	if len(healthy) == 0 {
		return target{}, errors.New("no proxy is healthy")
	}
	slices.SortFunc(healthy, func(x, y *target) int { return strings.Compare(x.name, y.name) })
	return *healthy[b.next.Add(1)%uint64(len(healthy))], nil
}

// newConnections makes each call over a new connection to a healthy target.
type newConnections struct{ balancer *balancer }

// Call implements harness.Caller.
func (c newConnections) Call(ctx context.Context) (string, error) {
	t, err := c.balancer.pick()
	if err != nil {
		return "", err
	}
	caller := harness.NewHTTPCaller("http://"+mesh.JoinHostPort(t.address, portHTTP)+"/", false, false)
	defer caller.Close()
	instance, err := caller.Call(ctx)
	if err != nil {
		return "", fmt.Errorf("%s: %w", t.name, err)
	}
	return instance, nil
}

// Close implements harness.Caller.
func (c newConnections) Close() {}

// hold keeps one long connection with little traffic. If the connection breaks, hold opens another.
func (b *balancer) hold(ctx context.Context) {
	for ctx.Err() == nil {
		t, err := b.pick()
		if err == nil {
			if err = b.holdOne(ctx, t); err != nil && ctx.Err() == nil {
				b.judge(t, err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (b *balancer) holdOne(ctx context.Context, t target) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", mesh.JoinHostPort(t.address, portTCP))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	answers := bufio.NewReader(conn)
	for {
		if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		if _, err := io.WriteString(conn, "still there?\n"); err != nil {
			return err
		}
		if _, err := answers.ReadString('\n'); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// judge decides whether a long connection was allowed to break: its target must have been unhealthy for the
// drain time.
func (b *balancer) judge(was target, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.breaks++
	t := b.targets[was.name]
	if t == nil || !t.healthy && time.Since(t.since) >= lbDrainTime-learnTime {
		return
	}
	b.broken = append(b.broken, fmt.Sprintf("%s, healthy %t for %s: %v", was.name, t.healthy, time.Since(t.since).Round(time.Millisecond), err))
}

// states returns whether each target is healthy, and how often that has changed.
func (b *balancer) states() map[string]target {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[string]target{}
	for name, t := range b.targets {
		all[name] = *t
	}
	return all
}
