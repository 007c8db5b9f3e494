// Package adsclient is a delta ADS client without Envoy. It is so small that one process can run thousands of clients
// beside the measured server: each has one goroutine, and no resource is decoded twice. Package envoysim simulates what
// one Envoy does with its resources, over gRPC in test/featuretest. The tests here compare both.
package adsclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// Observer is notified of what happens on a stream. The client calls it in its own goroutine.
type Observer interface {
	// Connected is called after the handshake, when the first requests are sent.
	Connected()
	// Resource is called for each resource. The bytes are only valid during the call.
	Resource(t resource.Type, name, version []byte)
	// Acked is called after the ACK of the response that had the last resources was sent.
	Acked()
}

// Options of a client.
type Options struct {
	// Address of the server, host:port.
	Address string
	// TLS has the proxy's certificate and the CAs that it trusts.
	TLS *tls.Config
	// Node is the proxy's id.
	Node string
	// State of the proxy. The first requests of the stream say what the proxy has.
	State *State
	// Observer, default none.
	Observer Observer
	// Received counts the bytes read from the connection. Default none.
	Received *atomic.Int64
	// Refuse is called for each resource of a response before any of them is applied. If it returns a text, the text is
	// the reason of a NACK, and nothing of the response is applied. The name is only valid during the call. Default:
	// nothing is refused.
	Refuse func(t resource.Type, name []byte) string
	// Dial connects to Address. Default: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Silent clients never answer.
	Silent bool
	// BytesPerSecond limits reading after the TLS handshake. 0 is no limit.
	BytesPerSecond int
}

// readBuffer is the receive buffer of a socket, in bytes. Thousands of sockets on one machine share the kernel's memory
// for TCP. At its limit the kernel drops and reorders packets, which would not happen to a proxy on its own machine.
const readBuffer = 128 << 10

// Run runs one stream. Like Envoy, it subscribes to all clusters and listeners, and to the endpoints and routes that
// they refer to. It answers each response at once. It returns why the stream ended, never nil: ctx's error if ctx
// ended.
func Run(ctx context.Context, o Options) error {
	if o.Dial == nil {
		o.Dial = Dial
	}
	raw, err := o.Dial(ctx, o.Address)
	if err != nil {
		return err
	}
	defer func() { _ = raw.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	m := &metered{Conn: raw, received: o.Received}
	secure := tls.Client(m, o.TLS)
	if err := secure.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	window := int64(wideWindow)
	if o.BytesPerSecond > 0 {
		m.ctx, m.perSecond = ctx, o.BytesPerSecond
		window = defaultWindow
	}
	c := &client{o: o}
	if c.link, err = openLink(secure, o.Address, window); err == nil {
		err = c.run()
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Dial is the default of Options.Dial.
func Dial(ctx context.Context, address string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if err := conn.(*net.TCPConn).SetReadBuffer(readBuffer); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

type client struct {
	o    Options
	link *link
}

func (c *client) run() error {
	c.hello()
	if err := c.link.flush(); err != nil {
		return err
	}
	if c.o.Observer != nil {
		c.o.Observer.Connected()
	}
	for {
		message, err := c.link.next()
		if err != nil {
			return err
		}
		if err := c.take(message); err != nil {
			return err
		}
		if err := c.link.flush(); err != nil {
			return err
		}
		if c.o.Observer != nil && !c.o.Silent {
			c.o.Observer.Acked()
		}
	}
}

// hello queues the first requests. Like Envoy after a reconnect, it names the proxy's resources and the names that they
// refer to.
func (c *client) hello() {
	s := c.o.State
	s.mu.Lock()
	defer s.mu.Unlock()
	node := c.o.Node
	for i, t := range resource.Types() {
		r := &request{node: node, kind: string(t), versions: s.versions(i)}
		if i == endpoints || i == routes {
			if r.subscribe = s.asked(i); len(r.subscribe) == 0 {
				continue
			}
		}
		c.link.send(r)
		node = ""
	}
}

// take applies a response, and queues the answer.
func (c *client) take(message []byte) error {
	r, err := readResponse(message)
	if err != nil {
		return err
	}
	kind := slices.Index(resource.Types(), resource.Type(r.kind))
	if kind < 0 {
		return fmt.Errorf("response of type %q, which the client did not request", r.kind)
	}
	if c.o.Refuse != nil {
		refusal, err := c.refusal(&r, resource.Types()[kind])
		if err != nil {
			return err
		}
		if refusal != "" && !c.o.Silent {
			c.link.send(&request{kind: string(r.kind), nonce: r.nonce, refusal: refusal})
			return nil
		}
	}
	s := c.o.State
	s.mu.Lock()
	defer s.mu.Unlock()
	var d difference
	err = r.each(func(name, version, body []byte) error {
		if c.o.Observer != nil {
			c.o.Observer.Resource(resource.Types()[kind], name, version)
		}
		n, v := s.catalog.number(name, version)
		return s.put(kind, n, v, body, &d)
	}, func(name []byte) error {
		n, _ := s.catalog.number(name, nil)
		s.drop(kind, n, &d)
		return nil
	})
	if err != nil {
		return err
	}
	s.kinds[kind].answered = true
	if c.o.Silent {
		return nil
	}
	c.link.send(&request{kind: string(r.kind), nonce: r.nonce})
	if len(d.add)+len(d.remove) > 0 {
		c.link.send(&request{
			kind: string(resource.Types()[dependent(kind)]), subscribe: s.catalog.text(d.add),
			unsubscribe: s.catalog.text(d.remove),
		})
	}
	return nil
}

// refusal calls Refuse for the resources, and returns the first reason.
func (c *client) refusal(r *response, t resource.Type) (first string, err error) {
	err = r.each(func(name, _, _ []byte) error {
		if first == "" {
			first = c.o.Refuse(t, name)
		}
		return nil
	}, func([]byte) error { return nil })
	return first, err
}

// metered is a connection that counts the bytes read, and optionally limits their rate.
type metered struct {
	net.Conn
	received  *atomic.Int64
	ctx       context.Context //nolint:containedctx // net.Conn's Read has no context
	perSecond int
}

// Read implements net.Conn.
func (m *metered) Read(b []byte) (int, error) {
	if m.perSecond > 0 {
		b = b[:min(len(b), m.perSecond)]
	}
	n, err := m.Conn.Read(b)
	if m.received != nil {
		m.received.Add(int64(n))
	}
	if m.perSecond > 0 && n > 0 {
		timer := time.NewTimer(time.Duration(n) * time.Second / time.Duration(m.perSecond))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-m.ctx.Done():
			return n, m.ctx.Err()
		}
	}
	return n, err
}
