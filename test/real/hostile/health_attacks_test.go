package hostile

import (
	"context"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// healthAttacks returns attacks on the ports for health and for sondectl.
func healthAttacks() []attack {
	health := func(x *target) string { return x.Health }
	admin := func(x *target) string { return x.Admin }
	return []attack{
		{name: "silent connections to the admin API", run: flood(admin, 1000, 300, nil)},
		{name: "half a handshake with the admin API", run: floodWith(admin, 1000, 300, sendHello)},
		{name: "calls to the admin API without the token", run: calls(8, adminWithoutToken)},
		{name: "silent connections to health", run: flood(health, 1000, 300, nil)},
		{name: "half requests to health from many addresses", run: floodFrom(health, 1000, 300, fromAnywhere, sendRequestLine)},
		{name: "slow readers of metrics", run: floodWith(health, 200, 50, sendScrapes)},
		{name: "questions to health, as fast as can be", run: floodWith(health, 8, 1, askHealth)},
		{name: "watches of health from many addresses", run: floodFrom(health, 300, 50, fromAnywhere, http2Plain(watchHealth))},
		{name: "health with headers that refer to others", run: floodWith(health, 60, 10, http2Plain(bombHeaders))},
		{name: "health with frames that ask nothing", run: floodWith(health, 60, 10, http2Plain(idleFrames))},
		{name: "health with streams that are reset", run: floodWith(health, 60, 10, http2Plain(rapidReset))},
	}
}

func sendRequestLine(c net.Conn) { _, _ = io.WriteString(c, "GET /readyz HTTP/1.1\r\nHost: a\r\n") }

// sendScrapes requests the metrics many times, and reads nothing.
func sendScrapes(c net.Conn) {
	_, _ = io.WriteString(c, strings.Repeat("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 100))
}

// askHealth makes requests until the connection is closed, and drops the responses.
func askHealth(c net.Conn) {
	go func() { _, _ = io.Copy(io.Discard, c) }()
	go func() {
		for err := error(nil); err == nil; {
			_, err = io.WriteString(c, "GET /readyz?verbose HTTP/1.1\r\nHost: a\r\n\r\nGET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
		}
	}()
}

// http2Plain is http2Attack without TLS.
func http2Plain(do func(context.Context, *http2.Framer) error) func(net.Conn) {
	return func(c net.Conn) {
		ctx, cancel := context.WithTimeout(context.Background(), attackTime)
		go func() {
			defer cancel()
			http2On(do)(ctx, c)
		}()
	}
}

// watchHealth opens all streams that a connection allows.
func watchHealth(ctx context.Context, f *http2.Framer) error {
	for id := uint32(1); id < 33; id += 2 {
		headers := requestHeaders(healthv1.Health_Watch_FullMethodName, hpack.HeaderField{Name: "grpc-timeout", Value: "1H"})
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers, EndHeaders: true}); err != nil {
			return err
		}
		if err := f.WriteData(id, true, make([]byte, 5)); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

func adminWithoutToken(ctx context.Context, x *target, _ int) {
	conn := x.dialAt(x.Admin)
	defer func() { _ = conn.Close() }()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+strings.Repeat("t", 4000))
	for ctx.Err() == nil {
		asking, cancel := context.WithTimeout(ctx, time.Second)
		_, _ = adminv1.NewAdminServiceClient(conn).ListProxies(asking, &adminv1.ListProxiesRequest{}) // the call is refused
		cancel()
	}
}
