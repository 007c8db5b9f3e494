package sockets

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/dpagent/scrape"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

// TestSocketOptionsOfScrapes checks that connections have the options of the listener.
func TestSocketOptionsOfScrapes(t *testing.T) {
	l, err := scrape.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	client, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	checkOptions(t, conn, map[string]socketOption{
		"send buffer":           {unix.SOL_SOCKET, unix.SO_SNDBUF, 2 * 64 << 10}, // the kernel doubles the value for its bookkeeping
		"ms until it is closed": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 10_000},
	})
}

type socketOption struct{ level, option, want int }

func checkOptions(t *testing.T, conn net.Conn, options map[string]socketOption) {
	t.Helper()
	for name, o := range options {
		var got int
		err := control(conn, func(fd int) (err error) {
			got, err = unix.GetsockoptInt(fd, o.level, o.option)
			return err
		})
		if err != nil || got != o.want {
			t.Errorf("%s: %d, %v, want %d", name, got, err, o.want)
		}
	}
}

// large is an Envoy with this many times 17 KB of statistics.
type large int

func (l large) Stats(_ context.Context, w io.Writer) error {
	line := strings.Repeat("envoy_a{b=\"c\"} 1\n", 1000)
	for range l {
		if _, err := io.WriteString(w, line); err != nil {
			return err
		}
	}
	return nil
}

// TestScrapeThatIsNotRead checks that the kernel drops unread data after the agent has closed the connection.
func TestScrapeThatIsNotRead(t *testing.T) {
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", serveScrapes(t, large(300)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: pod\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the connection to be closed", func() error {
		return control(conn, func(fd int) error {
			info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			if err == nil && info.State == established {
				err = errors.New("the connection is open")
			}
			return err
		})
	})
	got, err := io.ReadAll(conn)
	if len(got) == 0 || len(got) > 2<<20 {
		t.Errorf("a client that did not read received %d bytes, %v, want a page that is cut", len(got), err)
	}
}

// serveScrapes serves metrics until the test ends, and returns the address.
func serveScrapes(t *testing.T, envoy scrape.Statistics) string {
	t.Helper()
	l, err := scrape.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- scrape.NewServer(scrape.NewPage(prometheus.NewRegistry(), envoy), nil).Serve(ctx, l, scrape.MaxConnections)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// TestScrapesBesideSlowReaders has clients at several addresses that scrape repeatedly and read slowly, but steadily.
// Another client still gets all its scrapes.
func TestScrapesBesideSlowReaders(t *testing.T) {
	address := serveScrapes(t, large(100))
	scrapeAll(t, address, 1) // makes the client known as one that reads
	ctx, stop := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	defer reading.Wait()
	defer stop()
	asked := make(chan struct{}, 1000)
	for n := range 24 {
		reading.Go(func() {
			for ctx.Err() == nil {
				readSlowly(ctx, net.IPv4(127, 66, 0, byte(1+n%6)), address, asked)
			}
		})
	}
	for range 24 {
		wait.Receive(t, "slow readers to ask", asked)
	}
	scrapeAll(t, address, 8)
}

// scrapeAll scrapes several times in a row, and fails the test if a scrape fails.
func scrapeAll(t *testing.T, address string, times int) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for n := range times {
		response, err := client.Get("http://" + address + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK || !strings.HasSuffix(string(page), "sonde_dpagent_envoy_scrape_success 1\n") {
			t.Errorf("scrape %d is answered %s, %d bytes, %v", n, response.Status, len(page), err)
		}
	}
}

// readSlowly requests metrics from a source address, and reads some KiB at intervals until the connection ends. The
// kernel buffers little for it.
func readSlowly(ctx context.Context, from net.IP, address string, asked chan<- struct{}) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}, Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 8<<10) }), err)
	}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_, err = io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n")
	select {
	case asked <- struct{}{}:
	default:
	}
	for err == nil {
		if _, err = conn.Read(make([]byte, 4<<10)); err == nil {
			time.Sleep(25 * time.Millisecond)
		}
	}
}
