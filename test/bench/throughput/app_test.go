package throughput

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// workload is one kind of request.
type workload struct {
	name string
	// http2 selects HTTP/2. atOnce is the number of concurrent requests.
	http2  bool
	atOnce int
	// up and down are the bytes of a request and of its response.
	up, down int64
}

// large is many times the size of windows and buffers.
const large = 16 << 20

var workloads = []workload{
	{name: "http1-request", atOnce: 16},
	{name: "http1-download", atOnce: 1, down: large},
	{name: "http1-upload", atOnce: 1, up: large},
	{name: "http2-request", http2: true, atOnce: 1},
	{name: "http2-request", http2: true, atOnce: 90},
	{name: "http2-request", http2: true, atOnce: 300},
	{name: "http2-download", http2: true, atOnce: 1, down: large},
	{name: "http2-download", http2: true, atOnce: 16, down: large},
	{name: "http2-upload", http2: true, atOnce: 1, up: large},
	{name: "http2-upload", http2: true, atOnce: 16, up: large},
}

// ask makes a request, and reads the response.
func (w workload) ask(ctx context.Context, client *http.Client, at string) error {
	method, body := http.MethodGet, io.Reader(nil)
	if w.up > 0 {
		method, body = http.MethodPost, io.LimitReader(zeros{}, w.up)
	}
	r, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://%s/%d", at, w.down), body)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %s", answer.Status)
	}
	n, err := io.Copy(io.Discard, answer.Body)
	if err == nil && n != w.down {
		err = fmt.Errorf("the answer has %d bytes, want %d", n, w.down)
	}
	return err
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func newClient(http2Only bool) (client *http.Client, end func()) {
	var protocols http.Protocols
	protocols.SetHTTP1(!http2Only)
	protocols.SetUnencryptedHTTP2(http2Only)
	t := &http.Transport{MaxIdleConnsPerHost: 1000, Protocols: &protocols}
	return &http.Client{Transport: t}, t.CloseIdleConnections
}

// serve runs the application: it reads the request, and responds with as many bytes as its path
// says.
func serve(l net.Listener) *http.Server {
	block := bytes.Repeat([]byte{'x'}, 64<<10)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Protocols: &protocols, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the caller sees an error
		var n int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d", &n)
		for ; n > 0; n -= len(block) {
			if _, err := w.Write(block[:min(n, len(block))]); err != nil {
				return
			}
		}
	})}
	go func() { _ = s.Serve(l) }() // until the server is closed
	return s
}
