package probe

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// stub is an application that answers slowly.
type stub struct {
	takes   time.Duration
	result  result
	began   atomic.Int32
	ended   atomic.Int32
	cut     atomic.Int32
	agents  sync.Map
	atOnce  atomic.Int32
	highest atomic.Int32
}

func (s *stub) probe(ctx context.Context, by asker) result {
	s.began.Add(1)
	s.agents.Store(by.agent, nil)
	s.highest.Store(max(s.highest.Load(), s.atOnce.Add(1)))
	defer s.atOnce.Add(-1)
	select {
	case <-time.After(s.takes):
		s.ended.Add(1)
		return s.result
	case <-ctx.Done():
		s.cut.Add(1)
		return failureOf(ctx.Err())
	}
}

// stubbed returns a handler whose only probe checks s, and a function that sends a request for it.
func stubbed(t *testing.T, s *stub) (*Handler, func(context.Context) *httptest.ResponseRecorder) {
	t.Helper()
	p := mesh.Probe{TimeoutSeconds: 1, TCPSocket: &mesh.TCPSocketProbe{Port: 1}}
	h, err := New(Options{
		Table: mesh.ProbeTable{p}, PodIP: netip.MustParseAddr("127.0.0.1"), Port: 9000, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	h.byPath[p.VirtualPath()].prober = s
	return h, func(ctx context.Context) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, p.VirtualPath(), http.NoBody))
		return w
	}
}

// Callers that arrive while a check runs share the check and its verdict.
func TestCallersShareACheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{takes: time.Second, result: result{verdict: failure, status: 418}}
		_, ask := stubbed(t, s)
		var callers sync.WaitGroup
		for i := range 100 {
			callers.Go(func() {
				<-time.After(time.Duration(i) * 9 * time.Millisecond) // the last one 109 ms before the end
				if w := ask(t.Context()); w.Code != 418 {
					t.Errorf("answer = %d", w.Code)
				}
			})
		}
		callers.Wait()
		if n := s.began.Load(); n != 1 {
			t.Errorf("100 callers made %d checks", n)
		}
	})
}

// A caller that arrives after the end of a check gets a new check: the kubelet probes again at once when a container
// becomes not ready.
func TestNoAnswerFromThePast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{result: result{verdict: success}}
		_, ask := stubbed(t, s)
		for i := range int32(checksBurst) {
			ask(t.Context())
			if n := s.ended.Load(); n != i+1 {
				t.Errorf("%d callers, one after the other, made %d checks", i+1, n)
			}
		}
	})
}

// However many callers there are, the application is checked at the allowed rate, and all callers get an answer.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{takes: time.Millisecond, result: result{verdict: success}}
		_, ask := stubbed(t, s)
		const seconds = 10
		var callers sync.WaitGroup
		var slowest, answers atomic.Int64
		end := time.Now().Add(seconds * time.Second)
		for range 50 {
			callers.Go(func() {
				for time.Now().Before(end) {
					begin := time.Now()
					if w := ask(t.Context()); w.Code != http.StatusOK || w.Body.String() != "success\n" {
						t.Errorf("answer = %d %s", w.Code, w.Body)
					}
					answers.Add(1)
					slowest.Store(max(slowest.Load(), int64(time.Since(begin))))
				}
			})
		}
		callers.Wait()
		// One more check begins at the end, for the callers that arrived just before.
		if n := s.began.Load(); n > seconds*checksPerSecond+checksBurst+1 || n < seconds*checksPerSecond {
			t.Errorf("%d checks in %d s", n, seconds)
		}
		if s.highest.Load() != 1 {
			t.Errorf("%d checks at once", s.highest.Load())
		}
		if limit := int64(102 * time.Millisecond); slowest.Load() > limit {
			t.Errorf("an answer took %s", time.Duration(slowest.Load()))
		}
	})
}

// A check without waiters ends without a verdict, and the next caller gets a new one.
func TestAllCallersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{takes: time.Hour, result: result{verdict: success}}
		h, ask := stubbed(t, s)
		h.o.Failed = func(f Failure) { t.Errorf("the check that ended is reported: %v", f) }
		ctx, leave := context.WithCancel(t.Context())
		go ask(ctx)
		go ask(ctx)
		staying, end := context.WithCancel(t.Context())
		go ask(staying)
		synctest.Wait()
		leave()
		synctest.Wait()
		if s.cut.Load() != 0 {
			t.Error("the check ended although a caller waits for it")
		}
		end()
		synctest.Wait()
		if s.cut.Load() != 1 {
			t.Error("the check continues without waiters")
		}
		if last := h.byPath["/tcp/1"].lane(0).last; last != nil {
			t.Errorf("the check that ended has the verdict %s", last)
		}
		s.takes = 0
		if w := ask(t.Context()); w.Body.String() != "success\n" {
			t.Errorf("answer = %d %s", w.Code, w.Body)
		}
		h.running.Wait()
	})
}

// Callers that come and go do not use up the rate of a caller that stays.
func TestCallersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stub{takes: 20 * time.Millisecond, result: result{verdict: success}}
		h, ask := stubbed(t, s)
		gone, leave := context.WithCancel(t.Context())
		leave()
		for range checksBurst {
			ask(t.Context())
		}
		for range 10 {
			ask(gone)
			turn := h.byPath["/tcp/1"].lane(0).current
			for range 1000 {
				ask(gone)
			}
			if h.byPath["/tcp/1"].lane(0).current != turn || turn == nil {
				t.Error("callers that leave make the wait start again")
			}
			begin := time.Now()
			if w := ask(t.Context()); w.Body.String() != "success\n" || time.Since(begin) > 121*time.Millisecond {
				t.Errorf("answer after %s = %d %s", time.Since(begin), w.Code, w.Body)
			}
		}
		h.running.Wait()
	})
}

// A slow probe does not delay others.
func TestSlowProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, quick := &stub{takes: time.Hour}, &stub{result: result{verdict: success}}
		h, askSlow := stubbed(t, slow)
		other, _ := stubbed(t, quick)
		e := other.byPath["/tcp/1"]
		h.byPath["/tcp/2"] = e
		ctx, leave := context.WithCancel(t.Context())
		for range 100 {
			go askSlow(ctx)
		}
		synctest.Wait()
		begin := time.Now()
		w := httptest.NewRecorder()
		e.path = "/tcp/2"
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/tcp/2", http.NoBody))
		if w.Code != http.StatusOK || time.Since(begin) > 0 {
			t.Errorf("answer after %s = %d", time.Since(begin), w.Code)
		}
		leave()
		synctest.Wait()
	})
}

// A fault of the agent never becomes a failure of the application.
func TestTell(t *testing.T) {
	tests := map[string]struct {
		result   result
		status   int
		length   string
		location bool
	}{
		"success":            {result{verdict: success}, 200, "", false},
		"warning":            {result{verdict: warning, reason: "r"}, 302, "0", true},
		"failure":            {result{verdict: failure, reason: "r"}, 503, "", false},
		"failure, 101":       {result{verdict: failure, status: 101}, 101, "", false},
		"failure, below 400": {result{verdict: failure, status: 100}, 503, "", false},
		"failure, too high":  {result{verdict: failure, status: 1000}, 503, "", false},
		"failure, own":       {result{verdict: failure, status: 400}, 400, "", false},
		"failure, highest":   {result{verdict: failure, status: 999}, 999, "", false},
		"errored":            {result{verdict: errored, reason: string(make([]byte, 500))}, 200, "100", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := httptest.NewRecorder()
			tc.result.write(w, "127.0.0.1:9000")
			if w.Code != tc.status || w.Header().Get("Content-Length") != tc.length || (w.Header().Get("Location") != "") != tc.location {
				t.Errorf("answer = %d %v", w.Code, w.Header())
			}
			if tc.result.verdict == errored && w.Body.Len() >= erroredLength {
				t.Errorf("a body of %d bytes is complete", w.Body.Len())
			}
		})
	}
}

// Callers share a check only if their kubelets' rules agree, so that no user agent changes another caller's verdict.
func TestVersionsShareNoCheck(t *testing.T) {
	for agents, want := range map[[2]string]int32{
		{"kube-probe/1.36", "kube-probe/1.37"}: 1,
		{"kube-probe/1.37", "kube-probe/1.38"}: 2,
		{"kube-probe/1.38", "kube-probe/1.99"}: 1,
		{"curl/8.1", "kube-probe/1.37"}:        1,
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &stub{takes: time.Second, result: result{verdict: success}}
			h, _ := stubbed(t, s)
			e := h.byPath["/tcp/1"]
			e.probe = mesh.Probe{TimeoutSeconds: 4, GRPC: &mesh.GRPCProbe{Port: 1}}
			var callers sync.WaitGroup
			for _, agent := range agents {
				callers.Go(func() {
					r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
					r.Header.Set("User-Agent", agent)
					e.ask(r)
				})
			}
			callers.Wait()
			if n := s.began.Load(); n != want {
				t.Errorf("%q made %d checks, want %d", agents, n, want)
			}
		})
	}
}
