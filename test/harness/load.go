package harness

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
)

// Caller makes one call and returns the name of the instance that responded.
type Caller interface {
	Call(ctx context.Context) (instance string, err error)
	Close()
}

// Load makes calls until Stop, and counts them.
type Load struct {
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu     sync.Mutex
	report Report
}

// Report is the result of a Load.
type Report struct {
	// Calls is the number of calls that have ended, Failed the number of failed calls among them.
	Calls, Failed int
	// Instances counts successful calls by the instance that responded.
	Instances map[string]int
	// Reasons counts failed calls by their error.
	Reasons map[string]int
}

// String shows the counts, and the reasons of failed calls.
func (r Report) String() string {
	lines := []string{fmt.Sprintf("%d calls, %d failed", r.Calls, r.Failed)}
	for _, reason := range slices.Sorted(maps.Keys(r.Reasons)) {
		lines = append(lines, fmt.Sprintf("  %d x %s", r.Reasons[reason], reason))
	}
	return strings.Join(lines, "\n")
}

// StartLoad starts one goroutine per caller, which calls repeatedly with a pause between calls.
func StartLoad(ctx context.Context, pause time.Duration, callers ...Caller) *Load {
	ctx, cancel := context.WithCancel(ctx)
	l := &Load{cancel: cancel, report: Report{Instances: map[string]int{}, Reasons: map[string]int{}}}
	for _, c := range callers {
		l.wait.Go(func() {
			defer c.Close()
			ticker := time.NewTicker(max(pause, time.Millisecond))
			defer ticker.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-ticker.C:
				}
				// Stop waits for a call in progress instead of canceling it.
				one, done := bounded(context.WithoutCancel(ctx))
				instance, err := c.Call(one)
				done()
				l.count(instance, err)
			}
		})
	}
	return l
}

func (l *Load) count(instance string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report.Calls++
	if err != nil {
		l.report.Failed++
		l.report.Reasons[err.Error()]++
		return
	}
	l.report.Instances[instance]++
}

// Report returns the result so far.
func (l *Load) Report() Report {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.report
	r.Instances, r.Reasons = maps.Clone(r.Instances), maps.Clone(r.Reasons)
	return r
}

// WaitMore returns once the load has made that many more calls, so that they use the current
// configuration.
func (l *Load) WaitMore(ctx context.Context, calls int) error {
	enough := l.Report().Calls + calls
	return Poll(ctx, "calls of the load", func(context.Context) error {
		if r := l.Report(); r.Calls < enough {
			return fmt.Errorf("it has made %d of %d", r.Calls, enough)
		}
		return nil
	})
}

// Stop waits for the calls in progress, and returns the result.
func (l *Load) Stop() Report {
	l.cancel()
	l.wait.Wait()
	return l.Report()
}

// Answer is the response of the application of test/app over HTTP.
type Answer struct {
	Instance string      `json:"instance"`
	Remote   string      `json:"remote"` // the caller's address, as the application sees it
	Protocol string      `json:"protocol"`
	Headers  http.Header `json:"headers"`
}

// HTTPCaller calls the application over HTTP.
type HTTPCaller struct {
	url    string
	client *http.Client
	// Method of the requests. Default GET.
	Method string
}

// NewHTTPCaller calls a URL over one connection (keep), or over a new connection for each call. With http2, it uses
// HTTP/2 without TLS.
func NewHTTPCaller(url string, keep, http2 bool) *HTTPCaller {
	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	return &HTTPCaller{
		url: url, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: !keep, Protocols: &protocols}},
	}
}

// Call implements Caller.
func (c *HTTPCaller) Call(ctx context.Context) (string, error) {
	answer, err := c.Ask(ctx)
	return answer.Instance, err
}

// Ask makes one call and returns the whole response. It ends with ctx, or after five minutes if ctx has no
// deadline.
func (c *HTTPCaller) Ask(ctx context.Context) (Answer, error) {
	ctx, done := bounded(ctx)
	defer done()
	body, err := do(ctx, c.client, c.Method, c.url)
	if err != nil {
		return Answer{}, err
	}
	var answer Answer
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return Answer{}, fmt.Errorf("decode the answer of the application: %w", err)
	}
	return answer, nil
}

// Close implements Caller.
func (c *HTTPCaller) Close() { c.client.CloseIdleConnections() }

// GRPCCaller calls the application over gRPC.
type GRPCCaller struct {
	address string
	keep    bool
	conn    *grpc.ClientConn
}

// NewGRPCCaller calls an address over one connection (keep), or over a new connection for each call.
func NewGRPCCaller(address string, keep bool) *GRPCCaller {
	return &GRPCCaller{address: address, keep: keep}
}

// Call implements Caller.
func (c *GRPCCaller) Call(ctx context.Context) (string, error) {
	if c.conn == nil {
		conn, err := grpc.NewClient("passthrough:///"+c.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return "", err
		}
		c.conn = conn
	}
	answer, err := testgrpc.NewTestServiceClient(c.conn).UnaryCall(ctx, &testgrpc.SimpleRequest{})
	if !c.keep {
		c.Close()
	}
	return answer.GetServerId(), err
}

// Close implements Caller.
func (c *GRPCCaller) Close() {
	if c.conn != nil {
		_ = c.conn.Close() // an error is harmless: every call has ended
		c.conn = nil
	}
}

// TCPCaller calls the application over TCP: it sends a line, or waits for the banner, and reads a line.
type TCPCaller struct {
	address string
	banner  bool
	keep    bool
	conn    net.Conn
}

// NewTCPCaller calls an address over one connection (keep), or over a new connection for each call.
func NewTCPCaller(address string, keep bool) *TCPCaller {
	return &TCPCaller{address: address, keep: keep}
}

// NewBannerCaller waits for the application's banner on a new connection for each call.
func NewBannerCaller(address string) *TCPCaller {
	return &TCPCaller{address: address, banner: true}
}

// Call implements Caller. The instance is "" for an echo, which does not name its instance.
func (c *TCPCaller) Call(ctx context.Context) (string, error) {
	if c.conn == nil {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.address)
		if err != nil {
			return "", err
		}
		c.conn = conn
	}
	instance, err := c.exchange(ctx)
	if !c.keep || err != nil {
		c.Close()
	}
	return instance, err
}

func (c *TCPCaller) exchange(ctx context.Context) (string, error) {
	deadline, _ := ctx.Deadline()
	if err := c.conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	const line = "hello\n"
	if !c.banner {
		if _, err := io.WriteString(c.conn, line); err != nil {
			return "", err
		}
	}
	answer, err := bufio.NewReader(c.conn).ReadString('\n')
	if errors.Is(err, io.EOF) {
		return "", errors.New("the application closed the connection without a response")
	}
	if err != nil {
		return "", err
	}
	if c.banner {
		return strings.TrimPrefix(strings.TrimSpace(answer), "220 "), nil
	}
	if answer != line {
		return "", fmt.Errorf("the echo is %q, want %q", answer, line)
	}
	return "", nil
}

// Close implements Caller.
func (c *TCPCaller) Close() {
	if c.conn != nil {
		_ = c.conn.Close() // an error is harmless: every call has ended
		c.conn = nil
	}
}
