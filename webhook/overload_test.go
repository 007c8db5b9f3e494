package webhook_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/webhook"
)

// most is the limit of parallel requests, and places the limit of arrived bytes of all requests.
const (
	most   = 1024
	places = 32 << 20
)

// peer is a client whose body stalls until the server evicts it.
type peer struct {
	*httptest.ResponseRecorder
	sent     io.Reader
	once     sync.Once
	end      chan struct{}
	answered chan struct{}
}

// SetReadDeadline implements the interface of http.ResponseController.
func (p *peer) SetReadDeadline(time.Time) error {
	p.once.Do(func() { close(p.end) })
	return nil
}

func (p *peer) Read(into []byte) (int, error) {
	if n, err := p.sent.Read(into); err == nil {
		return n, nil
	}
	<-p.end
	return 0, context.DeadlineExceeded
}

func (p *peer) Close() error { return nil }

// stall sends a part of a body of 8 MiB.
func stall(t *testing.T, s *webhook.Server, from string, sent int) *peer {
	t.Helper()
	p := &peer{
		ResponseRecorder: httptest.NewRecorder(), sent: strings.NewReader(strings.Repeat(" ", sent)),
		end: make(chan struct{}), answered: make(chan struct{}),
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, webhook.PathInject, nil)
	r.Header.Set("Content-Type", "application/json")
	r.RemoteAddr, r.Body, r.ContentLength = from, p, 8<<20
	go func() {
		defer close(p.answered)
		s.Handler().ServeHTTP(p, r)
	}()
	synctest.Wait()
	return p
}

// lost reports whether the server has evicted the request.
func (p *peer) lost() bool {
	select {
	case <-p.answered:
		return true
	default:
		return false
	}
}

// postFrom is post with a source address.
func postFrom(t *testing.T, s *webhook.Server, from string, body []byte) int {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, webhook.PathInject, bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.RemoteAddr = from
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w.Code
}

// Announced bytes take no place. If arrived bytes exceed the limit, the source with the most is evicted.
func TestBodiesThatStop(t *testing.T) {
	const hostile, other, caller = "10.0.0.1:1000", "10.0.0.2:1000", "10.0.0.3:1000"
	body := podReview("shop", []byte(`{"spec":{"containers":[{"name":"app"}]}}`))
	tests := map[string]struct {
		from string
		sent int
		n    int
		lost int // of the stalled requests
	}{
		"announced alone":             {from: caller, sent: 0, n: most - 2, lost: 0},
		"as many as there may be":     {from: caller, sent: 1, n: most - 1, lost: 1},
		"of the same address":         {from: hostile, sent: 1, n: most - 1, lost: 1},
		"all that may arrive":         {from: caller, sent: 8<<20 - 1, n: places/(8<<20) - 2, lost: 0},
		"all that may arrive, filled": {from: caller, sent: 8<<20 - 1, n: places/(8<<20) - 1, lost: 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t, enabled().options())
				few := stall(t, s, other, tc.sent)
				all := []*peer{few}
				for range tc.n {
					all = append(all, stall(t, s, hostile, tc.sent))
				}
				if status := postFrom(t, s, tc.from, body); status != http.StatusOK {
					t.Errorf("status %d, want 200", status)
				}
				synctest.Wait()
				lost := 0
				for _, p := range all {
					if p.lost() {
						lost++
						if p.Code != http.StatusServiceUnavailable || p.Header().Get("Retry-After") != "1" {
							t.Errorf("a body that is given up: %d, want 503 with Retry-After", p.Code)
						}
					}
				}
				if lost != tc.lost || few.lost() {
					t.Errorf("%d of %d bodies that have stopped are given up, want %d, and none of a source with few", lost, tc.n, tc.lost)
				}
				for _, p := range all {
					_ = p.SetReadDeadline(time.Now())
					<-p.answered
				}
			})
		})
	}
}

// At the limit of waiting requests, the one that has waited longest is told to retry.
func TestTooManyRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := enabled().options()
		proceed := make(chan struct{})
		o.Namespace = func(ctx context.Context, _ string) (webhook.Namespace, error) {
			select {
			case <-proceed:
			case <-ctx.Done():
			}
			return webhook.Namespace{}, ctx.Err()
		}
		s := newServer(t, o)
		body := podReview("shop", []byte(`{"spec":{"containers":[{"name":"app"}]}}`))
		statuses := make(chan int, most+1)
		for range most + 1 {
			go func() { statuses <- post(t, s, webhook.PathInject, body).Code }()
			synctest.Wait()
		}
		if status := <-statuses; status != http.StatusServiceUnavailable {
			t.Errorf("one request too many: %d, want 503", status)
		}
		close(proceed)
		for range most {
			if status := <-statuses; status != http.StatusOK {
				t.Errorf("status %d, want 200", status)
			}
		}
	})
}

// Reviews that would need too much memory are rejected before decoding, even small ones, and expensive checks stop once
// the response is full.
func TestBombs(t *testing.T) {
	list := func(element string, n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + "]"
	}
	dataplane := func(spec string) []byte {
		return objectReview("Dataplane", "CREATE", `{"metadata":{"name":"vm"},"spec":`+spec+`}`, "null")
	}
	pod := func(pod string) []byte { return podReview("shop", []byte(pod)) }
	const many = 1 << 19
	tests := map[string]struct {
		path string
		body []byte
		want int
		text string
	}{
		"containers":        {webhook.PathInject, pod(`{"spec":{"containers":` + list("{}", many) + `}}`), http.StatusBadRequest, "too many objects and values"},
		"null":              {webhook.PathInject, pod(`{"spec":{"containers":` + list("null", many) + `}}`), http.StatusBadRequest, "too many objects and values"},
		"volumes":           {webhook.PathInject, pod(`{"spec":{"volumes":` + list("{}", many) + `}}`), http.StatusBadRequest, "too many objects and values"},
		"no list":           {webhook.PathInject, pod(`{"spec":` + strings.Repeat("[", many) + `}`), http.StatusBadRequest, "nested deeper than 1000"},
		"a text of these":   {webhook.PathInject, pod(`{"metadata":{"annotations":{"a":"\"` + strings.Repeat("[{,", many) + `"}},"spec":{"containers":[{"name":"app"}]}}`), http.StatusOK, "patch"},
		"objects":           {webhook.PathValidate, dataplane(list(`{"":0}`, many)), http.StatusBadRequest, "too many objects and values"},
		"inbounds":          {webhook.PathValidate, dataplane(`{"networking":{"inbound":` + list("{}", 20_000) + `}}`), http.StatusOK, "must have at most 10000 items"},
		"bad inbounds":      {webhook.PathValidate, dataplane(`{"networking":{"inbound":` + list("{}", 9000) + `}}`), http.StatusOK, "spec.networking.inbound[0].port: is missing"},
		"backends":          {webhook.PathValidate, objectReview("Mesh", "CREATE", `{"metadata":{"name":"blue"},"spec":{"mtls":{"backends":`+list("{}", 20_000)+`}}}`, "null"), http.StatusOK, "must have at most 10000 items"},
		"wrong inbounds":    {webhook.PathValidate, dataplane(`{"networking":{"inbound":` + list(`{"port":""}`, 20_000) + `}}`), http.StatusOK, "spec.networking.inbound[0].port"},
		"a long number":     {webhook.PathInject, pod(`{"spec":{"containers":[{"name":` + strings.Repeat("1", many) + `}]}}`), http.StatusBadRequest, "containers[0].name"},
		"a long namespace":  {webhook.PathInject, podReview(strings.Repeat("n", many), []byte(`{}`)), http.StatusBadRequest, "request.namespace"},
		"containers' names": {webhook.PathInject, pod(`{"spec":{"containers":` + list(`{"name":"a"}`, 20_000) + `}}`), http.StatusOK, "two containers have this name"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := post(t, newServer(t, enabled().options()), tc.path, tc.body)
			if text := w.Body.String(); w.Code != tc.want || !strings.Contains(text, tc.text) || len(text) > 16<<10 {
				t.Errorf("%d: %d bytes, want %d with %q:\n%.1000s", w.Code, len(text), tc.want, tc.text, text)
			}
		})
	}
}
