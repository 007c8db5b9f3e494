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

// largest is the size of the largest body that the webhook accepts.
const largest = 8 << 20

// webhookAddress is the address of the webhook.
type webhookAddress string

func webhookAttacks(address string) []attack {
	x := webhookAddress(address)
	on := func(atOnce, perSecond int, protocol string, do func(context.Context, *tls.Conn)) func(context.Context, *target) {
		return x.flood(atOnce, perSecond, nil, protocol, do)
	}
	return []attack{
		{name: "bodies that are announced", run: on(64, 16, "http/1.1", announce)},
		{name: "bodies that are announced on each stream", run: on(32, 8, "h2", http2Attack(announceStreams))},
		{name: "bodies that stop before their end", run: on(40, 10, "http/1.1", most)},
		{name: "bodies that stop before their end on each stream", run: on(40, 10, "h2", http2Attack(mostOnStreams))},
		{name: "bodies that come byte by byte", run: on(300, 100, "http/1.1", drip)},
		{name: "bodies from many addresses", run: x.flood(600, 200, fromAnywhere, "http/1.1", announce)},
		{name: "large bodies from many addresses", run: x.flood(40, 10, fromAnywhere, "http/1.1", most)},
		{name: "silent connections", run: x.floodTCP(1500, 300, nil, func(net.Conn) {})},
		{name: "silent connections from many addresses", run: x.floodTCP(1500, 300, fromAnywhere, func(net.Conn) {})},
		{name: "half a handshake", run: x.floodTCP(600, 200, nil, sendHello)},
		{name: "a handshake and nothing else", run: on(600, 150, "h2", holdTLS)},
		{name: "half-closed TLS", run: on(300, 100, "http/1.1", halfClose)},
		{name: "half a header", run: on(600, 150, "http/1.1", func(_ context.Context, c *tls.Conn) {
			_, _ = io.WriteString(c, "POST /inject HTTP/1.1\r\nHost: a\r\n")
		})},
		{name: "headers that refer to others", run: on(60, 10, "h2", http2Attack(bombHeaders))},
		{name: "headers that never end", run: on(60, 10, "h2", http2Attack(endlessHeaders))},
		{name: "frames that ask nothing", run: on(20, 5, "h2", http2Attack(idleFrames))},
		{name: "frames that are announced", run: on(480, 50, "h2", announceFrame)},
		{name: "streams that are reset", run: on(20, 5, "h2", http2Attack(resetReviews))},
		{name: "answers that are not read", run: on(30, 5, "h2", http2Attack(readNothing))},
		{name: "reviews that are larger when they are read", run: x.posts(4, bombs())},
		{name: "many small reviews", run: x.posts(8, [][]byte{reviewOf(`{"spec":{"containers":[{"name":"app"}]}}`)})},
		{name: "invalid reviews", run: x.posts(8, [][]byte{[]byte(`{`), []byte(`[]`), bytes.Repeat([]byte(`[`), 1<<20)})},
	}
}

// flood runs a function on connections after the handshake, a number at once, and then a number each second. It
// holds all of them.
func (x webhookAddress) flood(atOnce, perSecond int, from func(n int) net.Addr, protocol string, do func(context.Context, *tls.Conn)) func(context.Context, *target) {
	return func(ctx context.Context, _ *target) {
		var held pool
		var running sync.WaitGroup
		defer running.Wait()
		defer held.close() // ends the functions on them
		repeat(ctx, atOnce, perSecond, 16, func(n int) {
			dialer := net.Dialer{Timeout: 2 * time.Second}
			if from != nil {
				dialer.LocalAddr = from(n)
			}
			dialing, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			c, err := (&tls.Dialer{NetDialer: &dialer, Config: webhookTLS(protocol)}).DialContext(dialing, "tcp", string(x))
			if err != nil {
				return
			}
			held.add(c)
			running.Go(func() { do(ctx, c.(*tls.Conn)) })
		})
	}
}

func (x webhookAddress) floodTCP(atOnce, perSecond int, from func(n int) net.Addr, say func(net.Conn)) func(context.Context, *target) {
	return floodFrom(func(*target) string { return string(x) }, atOnce, perSecond, from, say)
}

// posts sends bodies repeatedly, as fast as possible.
func (x webhookAddress) posts(workers int, bodies [][]byte) func(context.Context, *target) {
	return func(ctx context.Context, _ *target) {
		transport := &http.Transport{TLSClientConfig: webhookTLS("http/1.1"), MaxIdleConnsPerHost: workers}
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

func (x webhookAddress) post(ctx context.Context, transport *http.Transport, body []byte) {
	path := "/inject"
	if bytes.Contains(body, []byte(`"Dataplane"`)) {
		path = "/validate"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+string(x)+path, bytes.NewReader(body))
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

// reviewOf returns an AdmissionReview of a pod.
func reviewOf(pod string) []byte {
	return []byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"version":"v1","kind":"Pod"},` +
		`"resource":{"version":"v1","resource":"pods"},"namespace":"shop","operation":"CREATE","object":` + pod + `}}`)
}

func reviewOfDataplane(spec string) []byte {
	return []byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","kind":{"group":"sonde.dev","version":"v1alpha1","kind":"Dataplane"},` +
		`"name":"vm","namespace":"shop","operation":"CREATE","object":{"metadata":{"name":"vm"},"spec":` + spec + `}}}`)
}

// bombs returns reviews that are many times larger when decoded, or slow to check.
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

// announce sends a header, and repeats it after the response.
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

// reviewHeaders encodes the headers of a review of this length.
func reviewHeaders(length int) []byte {
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, h := range []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "cp"}, {Name: ":path", Value: "/inject"},
		{Name: "content-type", Value: "application/json"}, {Name: "content-length", Value: strconv.Itoa(length)},
	} {
		h.Sensitive = true  // not added to the table, so that the bytes can be sent again
		_ = e.WriteField(h) // writes to a buffer
	}
	return block.Bytes()
}

func announceStreams(_ context.Context, f *http2.Framer) error {
	return eachStream(f, largest, nil)
}

func mostOnStreams(_ context.Context, f *http2.Framer) error {
	return eachStream(f, largest, make([]byte, 16<<10))
}

// eachStream starts a review on each stream that a connection allows.
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

// announceFrame sends the header of a frame of the default maximum size, and none of its data.
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

// readNothing gives the server no window for its responses.
func readNothing(_ context.Context, f *http2.Framer) error {
	if err := f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		return err
	}
	body := reviewOf(`{"metadata":{"labels":{"kuma.io/mesh":"none"}},"spec":{"containers":[{"name":"app"}]}}`)
	return eachStream(f, len(body), body)
}
