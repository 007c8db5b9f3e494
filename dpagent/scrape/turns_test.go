package scrape_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/dpagent/scrape"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// recorder supports deadlines, like a connection.
type recorder struct{ *httptest.ResponseRecorder }

func (recorder) SetWriteDeadline(time.Time) error { return nil }

// crowd scrapes a server, in a bubble of synctest.
type crowd struct {
	server *scrape.Server
	asking sync.WaitGroup
	mu     sync.Mutex
	codes  map[string][]int // status codes by source
	asked  []time.Time      // requests to Envoy
	now    int              // current number of concurrent requests to Envoy
	most   int
}

// newCrowd returns a crowd with an Envoy that takes this long per request.
func newCrowd(takes time.Duration) *crowd {
	c := &crowd{codes: map[string][]int{}}
	c.server = scrape.NewServer(scrape.NewPage(prometheus.NewRegistry(), statistics(func(ctx context.Context, w io.Writer) error {
		c.mu.Lock()
		c.asked = append(c.asked, time.Now())
		c.now++
		c.most = max(c.most, c.now)
		c.mu.Unlock()
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.now--
		}()
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			return ctx.Err()
		}
		_, err := io.WriteString(w, "envoy_a 1\n")
		return err
	})), nil)
	return c
}

func (c *crowd) ask(from string) { c.askUntil(context.Background(), from) }

// askUntil sends a scrape, and closes the connection when ctx ends.
func (c *crowd) askUntil(ctx context.Context, from string) {
	c.asking.Go(func() {
		w := recorder{httptest.NewRecorder()}
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/metrics", http.NoBody)
		r.RemoteAddr = from + ":1"
		c.server.ServeHTTP(w, r)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.codes[from] = append(c.codes[from], w.Code)
		if retry := w.Header().Get("Retry-After"); (retry != "") != (w.Code == http.StatusServiceUnavailable) {
			panic(fmt.Sprintf("code %d with Retry-After %q", w.Code, retry))
		}
	})
}

func (c *crowd) count(from string, code int) (n int) {
	for _, got := range c.codes[from] {
		if got == code {
			n++
		}
	}
	return n
}

// total returns how often a code was returned.
func (c *crowd) total(code int) (n int) {
	for from := range c.codes {
		n += c.count(from, code)
	}
	return n
}

// checkCost checks how often Envoy got requests.
func (c *crowd) checkCost(t *testing.T) {
	t.Helper()
	if c.most > 2 {
		t.Errorf("Envoy got %d concurrent requests", c.most)
	}
	for i := 1; i < len(c.asked); i++ {
		if d := c.asked[i].Sub(c.asked[i-1]); d < 250*time.Millisecond {
			t.Errorf("Envoy got the next request after %s", d)
		}
	}
}

func TestCrowds(t *testing.T) {
	tests := map[string]struct {
		takes time.Duration // Envoy's time per request
		ask   func(c *crowd)
		check func(c *crowd) error
	}{
		"one each second": {10 * time.Millisecond, func(c *crowd) {
			for range 60 {
				c.ask("10.0.0.1")
				<-time.After(time.Second)
			}
		}, func(c *crowd) error {
			if n := c.count("10.0.0.1", http.StatusOK); n != 60 {
				return fmt.Errorf("%d of 60 scrapes succeeded", n)
			}
			return nil
		}},
		"several at once": {10 * time.Millisecond, func(c *crowd) {
			for i := range 5 {
				c.ask(fmt.Sprintf("10.0.0.%d", i))
			}
		}, func(c *crowd) error {
			if n := c.total(http.StatusOK); n != 5 {
				return fmt.Errorf("the sources got %v, want 200 for all", c.codes)
			}
			return nil
		}},
		"a flood of one, beside another": {10 * time.Millisecond, func(c *crowd) {
			for range 60 {
				c.ask("10.0.0.1")
			}
			<-time.After(time.Second)
			c.ask("10.0.0.2")
		}, func(c *crowd) error {
			if c.count("10.0.0.2", http.StatusOK) != 1 || c.count("10.0.0.1", http.StatusServiceUnavailable) == 0 {
				return fmt.Errorf("the sources got %v, want 200 for 10.0.0.2 and 503 for some of the flood", c.codes)
			}
			return nil
		}},
		"an Envoy that hangs": {time.Hour, func(c *crowd) {
			for i := range 4 {
				c.ask(fmt.Sprintf("10.0.0.%d", i))
			}
		}, func(c *crowd) error {
			if c.total(http.StatusOK) != 2 { // these get the agent's metrics
				return fmt.Errorf("the sources got %v, want 200 for the two that have places", c.codes)
			}
			return nil
		}},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			c := newCrowd(tc.takes)
			tc.ask(c)
			c.asking.Wait()
			if err := tc.check(c); err != nil {
				t.Error(err)
			}
			c.checkCost(t)
		})
	}
}

// TestThoseThatHaveGone has a thousand clients close their connections before their turn.
func TestThoseThatHaveGone(t *testing.T) {
	for name, ask := range map[string]func(c *crowd){
		"all at once": func(c *crowd) {
			ctx, cancel := context.WithCancel(context.Background())
			for range 1000 {
				c.askUntil(ctx, "10.0.0.1")
			}
			synctest.Wait()
			cancel()
		},
		"one after the other": func(c *crowd) {
			for range 1000 {
				ctx, cancel := context.WithCancel(context.Background())
				c.askUntil(ctx, "10.0.0.1")
				synctest.Wait()
				cancel()
			}
		},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			c := newCrowd(10 * time.Millisecond)
			ask(c)
			c.asking.Wait()
			began := time.Now()
			c.ask("10.0.0.2")
			c.asking.Wait()
			if took := time.Since(began); c.count("10.0.0.2", http.StatusOK) != 1 || took > time.Second || len(c.asked) > 3 {
				t.Errorf("the client after them got %v after %s, and Envoy got %d requests", c.codes["10.0.0.2"], took, len(c.asked))
			}
			c.checkCost(t)
		})
	}
}
