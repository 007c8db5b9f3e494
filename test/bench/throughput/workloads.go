package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// workload is made of requests that are repeated. Its figure is their number per second, or that of MB if they are large.
type workload struct {
	name string
	// http2 says in which version of HTTP. atOnce is how many requests are made at the same time.
	http2  bool
	atOnce int
	// up and down are how many bytes a request and its answer have.
	up, down int64
}

const large = 64 << 20

var workloads = []workload{
	{name: "HTTP/1.1, 16 small requests at once", atOnce: 16},
	{name: "HTTP/1.1, a large download", atOnce: 1, down: large},
	{name: "HTTP/1.1, a large upload", atOnce: 1, up: large},
	{name: "HTTP/2, a small request", http2: true, atOnce: 1},
	{name: "HTTP/2, 90 small requests at once", http2: true, atOnce: 90},
	{name: "HTTP/2, 300 small requests at once", http2: true, atOnce: 300},
	{name: "HTTP/2, a large download", http2: true, atOnce: 1, down: large},
	{name: "HTTP/2, 16 large downloads", http2: true, atOnce: 16, down: large},
	{name: "HTTP/2, a large upload", http2: true, atOnce: 1, up: large},
	{name: "HTTP/2, 16 large uploads", http2: true, atOnce: 16, up: large},
}

// unit returns the unit of the figure.
func (w workload) unit() string {
	if w.up+w.down > 0 {
		return "MB/s"
	}
	return "requests/s"
}

// run makes requests for some time, and returns the figure. Bytes count that have arrived by then.
func (w workload) run(ctx context.Context, at string, d time.Duration) (float64, error) {
	client, end := newClient(w.http2)
	defer end()
	if err := w.ask(ctx, client, at, new(atomic.Int64)); err != nil { // connections are made
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var requests, count atomic.Int64
	failed := make(chan error, w.atOnce)
	var asking sync.WaitGroup
	began := time.Now()
	for range w.atOnce {
		asking.Go(func() {
			for {
				err := w.ask(ctx, client, at, &count)
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					failed <- err
					return
				}
				requests.Add(1)
			}
		})
	}
	asking.Wait()
	took := time.Since(began).Seconds()
	select {
	case err := <-failed:
		return 0, fmt.Errorf("%s: %w", w.name, err)
	default:
	}
	if w.up+w.down > 0 {
		return float64(count.Load()) / 1e6 / took, nil
	}
	return float64(requests.Load()) / took, nil
}

// ask makes a request, and counts the bytes of bodies.
func (w workload) ask(ctx context.Context, client *http.Client, at string, count *atomic.Int64) error {
	method, body := http.MethodGet, io.Reader(nil)
	if w.up > 0 {
		method, body = http.MethodPost, &counter{io.LimitReader(zeros{}, w.up), count}
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
	read := io.Reader(answer.Body)
	if w.down > 0 {
		read = &counter{answer.Body, count}
	}
	_, err = io.Copy(io.Discard, read)
	return err
}

// counter counts what is read.
type counter struct {
	io.Reader
	count *atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.count.Add(int64(n))
	return n, err
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func newClient(http2Only bool) (client *http.Client, end func()) {
	var protocols http.Protocols
	protocols.SetHTTP1(!http2Only)
	protocols.SetUnencryptedHTTP2(http2Only)
	t := &http.Transport{MaxIdleConnsPerHost: 1000, Protocols: &protocols}
	return &http.Client{Transport: t}, t.CloseIdleConnections
}

// serve is the application: it reads the request, and answers with as many bytes as its path says.
func serve(l net.Listener) *http.Server {
	block := bytes.Repeat([]byte{'x'}, 64<<10)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Protocols: &protocols, ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the caller sees how it went
		var n int
		_, _ = fmt.Sscanf(r.URL.Path, "/%d", &n)
		for ; n > 0; n -= len(block) {
			if _, err := w.Write(block[:min(n, len(block))]); err != nil {
				return
			}
		}
	})}
	go func() { _ = s.Serve(l) }() // until it is closed
	return s
}
