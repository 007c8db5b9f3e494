//go:build soak

package soak

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/test/adsclient"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// member is one proxy: its state, and its stream, if any. It is the Observer of that stream. Only the goroutine of
// the operations calls join and leave.
type member struct {
	s      *soak
	node   string
	tls    *tls.Config
	state  *adsclient.State
	cancel context.CancelFunc // nil after leave
	done   chan struct{}      // closed after live has returned

	conn      atomic.Pointer[conn]
	connected atomic.Bool
	silent    atomic.Bool
	stalled   atomic.Int64 // does not read until then, in Unix nanoseconds
	faulty    atomic.Bool  // has not read or responded on this stream
	refusal   atomic.Pointer[refusal]
	refused   atomic.Bool // has refused a resource on this stream

	// Used only by live.
	generation                int64 // the control plane's generation when the stream started
	hadClusters, hadListeners bool
}

// refusal makes a proxy refuse the next resource of a type.
type refusal struct {
	kind resource.Type
	mute bool // the NACK does not name the resource
}

// away is how long a proxy waits after losing its stream.
const away = 100 * time.Millisecond

// join starts live. A cold proxy starts without its previous state.
func (m *member) join(cold bool) {
	if m.cancel != nil {
		return
	}
	if cold {
		m.state = adsclient.NewState(m.s.catalog)
		m.hadClusters, m.hadListeners = false, false
	}
	var ctx context.Context
	ctx, m.cancel = context.WithCancel(context.WithoutCancel(m.s.Context())) // leave ends it
	m.done = make(chan struct{})
	go func() {
		defer close(m.done)
		m.live(ctx)
	}()
}

// leave ends live.
func (m *member) leave(how int32) {
	if m.cancel == nil {
		return
	}
	if c := m.conn.Load(); c != nil {
		c.how.Store(how)
	}
	m.cancel()
	<-m.done
	m.cancel = nil
}

func (m *member) live(ctx context.Context) {
	for {
		m.refused.Store(false)
		m.faulty.Store(m.silent.Load())
		err := adsclient.Run(ctx, adsclient.Options{
			Address: m.s.machine.Agents, TLS: m.tls, Node: m.node, State: m.state, Observer: m,
			Refuse: m.refuse, Dial: m.dial, Silent: m.silent.Load(),
		})
		was := m.connected.Swap(false)
		if ctx.Err() != nil {
			return
		}
		m.judge(err, was)
		if run.Sleep(ctx, away) != nil {
			return
		}
	}
}

func (m *member) dial(ctx context.Context, address string) (net.Conn, error) {
	raw, err := adsclient.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, m: m, closed: make(chan struct{})}
	m.conn.Store(c)
	return c, nil
}

// judge reports a stream that ended in an unexpected way.
func (m *member) judge(err error, connected bool) {
	if !connected {
		m.s.counts.add("connections refused")
		return
	}
	m.s.counts.add("streams lost")
	switch text := err.Error(); {
	case strings.HasPrefix(text, "decode "), strings.HasPrefix(text, "response of type"):
		m.s.Errorf("%s: %v", m.node, err)
		return
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Internal, codes.ResourceExhausted:
		m.s.Errorf("%s loses its stream: %v", m.node, err)
		return
	}
	if m.s.up.Load() && m.s.generation.Load() == m.generation && !m.faulty.Load() {
		m.s.Errorf("%s loses its stream, and has done nothing: %v", m.node, err)
	}
}

// refuse refuses the resource if a refusal is set for it.
func (m *member) refuse(t resource.Type, name []byte) string {
	d := m.refusal.Load()
	if d == nil || d.kind != t || !m.refusal.CompareAndSwap(d, nil) {
		return ""
	}
	m.refused.Store(true)
	m.s.counts.add("versions refused")
	if d.mute {
		return "a reason without a name"
	}
	return `Proto constraint validation failed (X): name: "` + string(name) + `"`
}

// Connected implements adsclient.Observer.
func (m *member) Connected() {
	m.generation = m.s.generation.Load()
	m.connected.Store(true)
	m.s.counts.add("streams")
}

// Resource implements adsclient.Observer.
func (m *member) Resource(resource.Type, []byte, []byte) { m.s.counts.add("resources") }

// Acked implements adsclient.Observer. A proxy that had resources must never have none, not even after its Dataplane
// is removed.
func (m *member) Acked() {
	m.s.counts.add("responses")
	has := m.state.Count()
	clusters, listeners := has[resource.Cluster] > 0, has[resource.Listener] > 0
	if m.hadClusters && !clusters || m.hadListeners && !listeners {
		m.s.Errorf("%s has only %d clusters and %d listeners", m.node, has[resource.Cluster], has[resource.Listener])
	}
	m.hadClusters, m.hadListeners = clusters, listeners
}
