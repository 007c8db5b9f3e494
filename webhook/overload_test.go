package webhook_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/webhook"
)

// While too many requests are answered, others wait for two seconds, less than the API server does.
func TestTooManyRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 256
		o := enabled().options()
		proceed := make(chan struct{})
		o.Namespace = func(context.Context, string) (webhook.Namespace, error) {
			<-proceed
			return webhook.Namespace{}, nil
		}
		s := newServer(t, o)
		body := podReview("shop", []byte(`{"spec":{"containers":[{"name":"app"}]}}`))
		statuses := make(chan int, most+1)
		start := func() {
			go func() { statuses <- post(t, s, webhook.PathInject, body).Code }()
			synctest.Wait()
		}
		for range most {
			start()
		}
		began := time.Now()
		start()
		if status := <-statuses; status != http.StatusServiceUnavailable || time.Since(began) != 2*time.Second {
			t.Errorf("one request too many: %d after %s, want 503 after 2s", status, time.Since(began))
		}
		start() // this one waits for less than that
		close(proceed)
		for range most + 1 {
			if status := <-statuses; status != http.StatusOK {
				t.Errorf("status %d, want 200", status)
			}
		}
	})
}

// Large bodies count as what they are: of the largest, eight are read at a time.
func TestTooManyBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, enabled().options())
		begun := make(chan *stalled, 16)
		statuses := make(chan int, 16)
		for range 9 {
			go func() {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, webhook.PathInject, nil)
				r.Header.Set("Content-Type", "application/json")
				body := &stalled{begun: begun, end: make(chan struct{})}
				r.Body, r.ContentLength = body, 8<<20
				w := httptest.NewRecorder()
				s.Handler().ServeHTTP(w, r)
				statuses <- w.Code
			}()
		}
		if status := <-statuses; status != http.StatusServiceUnavailable || len(begun) != 8 {
			t.Errorf("the ninth: %d, while %d are read, want 503 and 8", status, len(begun))
		}
		for range 8 {
			close((<-begun).end)
			if status := <-statuses; status != http.StatusBadRequest {
				t.Errorf("a body that ends early: %d, want 400", status)
			}
		}
	})
}

// stalled is a body of which nothing comes until it ends.
type stalled struct {
	begun chan *stalled
	end   chan struct{}
}

func (b *stalled) Read([]byte) (int, error) {
	b.begun <- b
	<-b.end
	return 0, io.EOF
}

func (b *stalled) Close() error { return nil }
