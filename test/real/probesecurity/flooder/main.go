// Command flooder attacks one probe on a virtual port in several ways at once, and prints the result as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Result is the result of a flood.
type Result struct {
	Seconds float64
	// Rate of sent requests, per second.
	Rate float64
	// Requests is the number of requests by result: Success is a verdict of 200, Errored a truncated response,
	// Failure any other status, and Ended no response.
	Requests, Success, Errored, Failure, Ended int64
	// Connections of the other kinds.
	Slow, Bombs, Idle, Half, Reset int64
}

type flood struct {
	target, request string
	sources         []*net.TCPAddr
	next            atomic.Uint64
	requests        int
	rate            int
	limit           time.Duration

	success, errored, failure, ended, slow, bombs, idle, half, reset atomic.Int64
}

func main() {
	f := flood{}
	flag.StringVar(&f.target, "target", "", "`host:port`")
	path := flag.String("path", "", "`path` of the probe")
	id := flag.String("id", "", "`id` of the probe")
	sources := flag.String("sources", "", "`addresses` to come from, with commas")
	flag.IntVar(&f.requests, "requests", 0, "how many")
	flag.IntVar(&f.rate, "rate", 10000, "requests per second")
	flag.DurationVar(&f.limit, "for", time.Minute, "no new requests after so long, on a machine that is too busy for them")
	flag.Parse()
	f.request = fmt.Sprintf("GET %s HTTP/1.1\r\nHost: a\r\nUser-Agent: flood\r\nSonde-Probe: %s\r\nConnection: close\r\n\r\n", *path, *id)
	for source := range strings.SplitSeq(*sources, ",") {
		f.sources = append(f.sources, &net.TCPAddr{IP: net.ParseIP(source)})
	}
	if err := json.NewEncoder(os.Stdout).Encode(f.run(context.Background())); err != nil {
		fmt.Fprintln(os.Stderr, "flooder:", err)
		os.Exit(1)
	}
}

// How many of each kind are open at a time.
const (
	slowCount  = 200
	bombsCount = 8
	idleCount  = 500
	halfCount  = 100
	resetCount = 4
	// pending is the maximum of pending requests: more than the agent accepts.
	pending = 3000
)

func (f *flood) run(ctx context.Context) Result {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var others sync.WaitGroup
	for attack, n := range map[*atomic.Int64]int{
		&f.slow: slowCount, &f.bombs: bombsCount, &f.idle: idleCount, &f.half: halfCount, &f.reset: resetCount,
	} {
		for range n {
			others.Go(func() { f.again(ctx, attack) })
		}
	}
	begin := time.Now()
	var running sync.WaitGroup
	free := make(chan struct{}, pending)
	const tick = 5 * time.Millisecond
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	sent := 0
	for ; sent < f.requests && time.Since(begin) < f.limit; <-ticker.C {
		for range min(f.rate*int(tick)/int(time.Second), f.requests-sent) {
			sent++
			free <- struct{}{}
			running.Go(func() {
				f.ask(ctx)
				<-free
			})
		}
	}
	took := time.Since(begin).Seconds()
	running.Wait()
	stop()
	others.Wait()
	return Result{
		Seconds: took, Rate: float64(sent) / took, Requests: int64(sent),
		Success: f.success.Load(), Errored: f.errored.Load(), Failure: f.failure.Load(), Ended: f.ended.Load(),
		Slow: f.slow.Load(), Bombs: f.bombs.Load(), Idle: f.idle.Load(), Half: f.half.Load(), Reset: f.reset.Load(),
	}
}

func (f *flood) dial(ctx context.Context) (*net.TCPConn, error) {
	d := net.Dialer{LocalAddr: f.sources[f.next.Add(1)%uint64(len(f.sources))], Timeout: 5 * time.Second, KeepAlive: -1}
	c, err := d.DialContext(ctx, "tcp", f.target)
	if err != nil {
		return nil, err
	}
	tcp := c.(*net.TCPConn)
	return tcp, errors.Join(tcp.SetLinger(0), tcp.SetDeadline(time.Now().Add(10*time.Second)))
}

// ask makes one request and records its response.
func (f *flood) ask(ctx context.Context) {
	answer := ""
	if c, err := f.dial(ctx); err == nil {
		_, _ = io.WriteString(c, f.request) // the response shows it
		body, _ := io.ReadAll(c)
		answer = string(body)
		_ = c.Close()
	}
	switch {
	case answer == "":
		f.ended.Add(1)
	case !strings.HasPrefix(answer, "HTTP/1.1 200"):
		f.failure.Add(1)
	case strings.Contains(answer, "Content-Length: 100\r\n"):
		f.errored.Add(1)
	default:
		f.success.Add(1)
	}
}

// again repeats an attack each time that the agent ends it.
func (f *flood) again(ctx context.Context, count *atomic.Int64) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if c, err := f.dial(ctx); err == nil {
			count.Add(1)
			end := context.AfterFunc(ctx, func() { _ = c.Close() })
			f.attack(c, count)
			end()
			_ = c.Close()
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

func (f *flood) attack(c *net.TCPConn, kind *atomic.Int64) {
	switch kind {
	case &f.slow: // a request, byte by byte
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for i := range len(f.request) {
			if _, err := io.WriteString(c, f.request[i:i+1]); err != nil {
				return
			}
			<-ticker.C
		}
	case &f.bombs: // endless headers
		header := "X-Bomb-" + strings.Repeat("b", 1000) + ": " + strings.Repeat("c", 1<<14) + "\r\n"
		for text := strings.TrimSuffix(f.request, "\r\n"); ; text = header {
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
		}
	case &f.half: // a request without reading the response
		_, _ = io.WriteString(c, f.request) // the agent may reject it
		_ = c.CloseWrite()
		_ = c.SetReadBuffer(1)
		_, _ = io.ReadAll(c)
	case &f.reset: // a request, then a reset
		_, _ = io.WriteString(c, f.request)
	default: // idle
		_, _ = io.ReadAll(c)
	}
}
