package hostile

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// largest is the largest body that the webhook takes.
const largest = 8 << 20

type webhookAttack struct {
	name string
	run  func(ctx context.Context)
}

func webhookAttacks(x *admissionTarget) []webhookAttack {
	on := func(atOnce, perSecond int, protocol string, do func(context.Context, *tls.Conn)) func(context.Context) {
		return x.flood(atOnce, perSecond, nil, protocol, do)
	}
	return []webhookAttack{
		{"bodies that are announced", on(64, 16, "http/1.1", announce)},
		{"bodies that are announced on each stream", on(32, 8, "h2", http2Attack(announceStreams))},
		{"bodies that stop before their end", on(40, 10, "http/1.1", most)},
		{"bodies that stop before their end on each stream", on(40, 10, "h2", http2Attack(mostOnStreams))},
		{"bodies that come byte by byte", on(300, 100, "http/1.1", drip)},
		{"bodies from many addresses", x.flood(600, 200, fromAnywhere, "http/1.1", announce)},
		{"large bodies from many addresses", x.flood(40, 10, fromAnywhere, "http/1.1", most)},
		{"silent connections", x.floodTCP(1500, 300, nil, func(net.Conn) {})},
		{"silent connections from many addresses", x.floodTCP(1500, 300, fromAnywhere, func(net.Conn) {})},
		{"half a handshake", x.floodTCP(600, 200, nil, sendHello)},
		{"a handshake and nothing else", on(600, 150, "h2", holdTLS)},
		{"half-closed TLS", on(300, 100, "http/1.1", halfClose)},
		{"half a header", on(600, 150, "http/1.1", func(_ context.Context, c *tls.Conn) {
			_, _ = io.WriteString(c, "POST /inject HTTP/1.1\r\nHost: a\r\n")
		})},
		{"headers that refer to others", on(60, 10, "h2", http2Attack(bombHeaders))},
		{"headers that never end", on(60, 10, "h2", http2Attack(endlessHeaders))},
		{"frames that ask nothing", on(20, 5, "h2", http2Attack(idleFrames))},
		{"frames that are announced", on(480, 50, "h2", announceFrame)},
		{"streams that are reset", on(20, 5, "h2", http2Attack(resetReviews))},
		{"answers that are not read", on(30, 5, "h2", http2Attack(readNothing))},
		{"reviews that are larger when they are read", x.posts(4, bombs())},
		{"many small reviews", x.posts(8, [][]byte{reviewOf(`{"spec":{"containers":[{"name":"app"}]}}`)})},
		{"reviews that are none", x.posts(8, [][]byte{[]byte(`{`), []byte(`[]`), bytes.Repeat([]byte(`[`), 1<<20)})},
	}
}

// flood does something on connections after the handshake, some at once, and then so many each second. All are held.
func (x *admissionTarget) flood(atOnce, perSecond int, from func(n int) net.Addr, protocol string, do func(context.Context, *tls.Conn)) func(context.Context) {
	return func(ctx context.Context) {
		var held pool
		var running sync.WaitGroup
		defer running.Wait()
		defer held.close() // what is done on them ends
		repeat(ctx, atOnce, perSecond, 16, func(n int) {
			dialer := net.Dialer{Timeout: 2 * time.Second}
			if from != nil {
				dialer.LocalAddr = from(n)
			}
			dialing, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			c, err := (&tls.Dialer{NetDialer: &dialer, Config: x.tls(protocol)}).DialContext(dialing, "tcp", x.webhook)
			if err != nil {
				return
			}
			held.add(c)
			running.Go(func() { do(ctx, c.(*tls.Conn)) })
		})
	}
}

func (x *admissionTarget) floodTCP(atOnce, perSecond int, from func(n int) net.Addr, say func(net.Conn)) func(context.Context) {
	run := floodFrom(func(*target) string { return x.webhook }, atOnce, perSecond, from, say)
	return func(ctx context.Context) { run(ctx, x.target) }
}

// posts sends bodies, again and again, as fast as it can.
func (x *admissionTarget) posts(workers int, bodies [][]byte) func(context.Context) {
	return func(ctx context.Context) {
		transport := &http.Transport{TLSClientConfig: x.tls("http/1.1"), MaxIdleConnsPerHost: workers}
		defer transport.CloseIdleConnections()
		var running sync.WaitGroup
		defer running.Wait()
		for worker := range workers {
			running.Go(func() {
				for n := worker; ctx.Err() == nil; n++ {
					x.post(ctx, transport, bodies[n%len(bodies)])
				}
			})
		}
	}
}

func (x *admissionTarget) post(ctx context.Context, transport *http.Transport, body []byte) {
	path := "/inject"
	if bytes.Contains(body, []byte(`"Dataplane"`)) {
		path = "/validate"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+x.webhook+path, bytes.NewReader(body))
	if err != nil {
		return
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
}

// reviewOf returns an AdmissionReview about a pod.
func reviewOf(pod string) []byte {
	return []byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"version":"v1","kind":"Pod"},` +
		`"resource":{"version":"v1","resource":"pods"},"namespace":"shop","operation":"CREATE","object":` + pod + `}}`)
}

func reviewOfDataplane(spec string) []byte {
	return []byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"group":"sonde.dev","version":"v1alpha1","kind":"Dataplane"},` +
		`"name":"vm","namespace":"shop","operation":"CREATE","object":{"metadata":{"name":"vm"},"spec":` + spec + `}}}`)
}

// bombs are reviews that take many times their size once they are decoded, or long to check.
func bombs() [][]byte {
	const size = largest - 4096
	list := func(element string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(element+",", size/(len(element)+1)), ",") + "]"
	}
	var named []string
	for n, left := 0, size; left > 0; n++ {
		c := fmt.Sprintf(`{"name":"c%d","livenessProbe":{"httpGet":{}}}`, n)
		named, left = append(named, c), left-len(c)-1
	}
	return [][]byte{
		reviewOf(`{"spec":{"containers":` + list(`{}`) + `}}`),
		reviewOf(`{"spec":{"containers":` + list(`{"lifecycle":{"preStop":{}}}`) + `}}`),
		reviewOf(`{"spec":{"containers":[` + strings.Join(named, ",") + `]}}`),
		reviewOf(`{"spec":{"volumes":` + list(`{}`) + `,"containers":[{"name":"app"}]}}`),
		reviewOf(`{"spec":{"containers":[{"name":"app","ports":` + list(`{}`) + `}]}}`),
		reviewOf(`{"spec":{"containers":[{"name":"app","args":` + list(`""`) + `}]}}`),
		reviewOfDataplane(list(`{"":0}`)),
		reviewOfDataplane(list(`[]`)),
		reviewOfDataplane(`{"networking":{"inbound":` + list(`{}`) + `}}`),
		reviewOfDataplane(`{"networking":{"outbound":` + list(`{"x":0}`) + `}}`),
	}
}

func header(length int) string {
	return fmt.Sprintf("POST /inject HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", length)
}

// announce sends a header, again once it is answered.
func announce(_ context.Context, c *tls.Conn) {
	_, _ = io.WriteString(c, header(largest))
	_, _ = io.Copy(io.Discard, c)
}

func most(_ context.Context, c *tls.Conn) {
	go func() { _, _ = io.Copy(io.Discard, c) }()
	_, _ = io.WriteString(c, header(largest)+strings.Repeat(" ", largest-1))
}

func drip(ctx context.Context, c *tls.Conn) {
	_, _ = io.WriteString(c, header(largest))
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if _, err := c.Write([]byte{' '}); err != nil {
			return
		}
		<-tick.C
	}
}

// reviewHeaders encodes the headers of a review of that length.
func reviewHeaders(length int) []byte {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, h := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "cp"}, {Name: ":path", Value: "/inject"},
		{Name: "content-type", Value: "application/json"}, {Name: "content-length", Value: strconv.Itoa(length)},
	} {
		h.Sensitive = true  // it is in no table, so that it can be sent again
		_ = e.WriteField(h) // to a buffer
	}
	return block.Bytes()
}

const streams = 250

func announceStreams(_ context.Context, f *http2.Framer) error {
	return eachStream(f, largest, nil)
}

func mostOnStreams(_ context.Context, f *http2.Framer) error {
	return eachStream(f, largest, make([]byte, 16<<10))
}

// eachStream begins a review on each stream that a connection may have.
func eachStream(f *http2.Framer, length int, data []byte) error {
	for id := uint32(1); id < 2*streams; id += 2 {
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: reviewHeaders(length), EndHeaders: true}); err != nil {
			return err
		}
		if data != nil {
			if err := f.WriteData(id, false, data); err != nil {
				return err
			}
		}
	}
	return nil
}

// announceFrame sends the header of a frame that is as large as a server of Go takes it to be by default, and nothing of it.
func announceFrame(ctx context.Context, c *tls.Conn) {
	http2Attack(func(_ context.Context, f *http2.Framer) error {
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: reviewHeaders(largest), EndHeaders: true}); err != nil {
			return err
		}
		_, err := c.Write([]byte{0x0f, 0xff, 0xff, byte(http2.FrameData), 0, 0, 0, 0, 1})
		return err
	})(ctx, c)
}

func resetReviews(ctx context.Context, f *http2.Framer) error {
	for id := uint32(1); ctx.Err() == nil; id += 2 {
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: reviewHeaders(largest), EndHeaders: true}); err != nil {
			return err
		}
		if err := f.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// readNothing gives the server no window for its answers.
func readNothing(_ context.Context, f *http2.Framer) error {
	if err := f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		return err
	}
	body := reviewOf(`{"metadata":{"labels":{"kuma.io/mesh":"none"}},"spec":{"containers":[{"name":"app"}]}}`)
	return eachStream(f, len(body), body)
}
