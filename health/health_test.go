package health_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

const fromHere, fromElsewhere = "127.0.0.1:40000", "192.0.2.7:40000"

// ask sends a request to the handler of all pages, and returns status, header and body.
func ask(r *health.Registry, method, target, from string, header ...string) (int, http.Header, string) {
	request := httptest.NewRequest(method, target, http.NoBody)
	request.RemoteAddr = from
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	health.Handler(r, health.Metrics(prometheus.NewRegistry())).ServeHTTP(w, request)
	return w.Code, w.Header(), w.Body.String()
}

// result returns a check whose result never changes.
func result(err error) func(context.Context) error {
	return func(context.Context) error { return err }
}

// TestPages has the cases of etcd's server/etcdserver/api/etcdhttp/health_test.go, rewritten, and those in which Sonde
// differs.
func TestPages(t *testing.T) {
	corrupt, unread := errors.New("alarm activated: CORRUPT"), errors.New("Unexpected error")
	type checks struct{ corruption, read error }
	tests := []struct {
		name   string
		checks checks
		target string
		status int
		body   string
	}{
		{"alive", checks{}, "/livez", 200, "ok\n"},
		{"alive, verbose", checks{}, "/livez?verbose", 200, "[+]serializable_read ok\n    NOW [+]serializable_read ok\nok\n"},
		{"alive with corrupt data", checks{corruption: corrupt}, "/livez", 200, "ok\n"},
		{"not alive if a read fails", checks{read: unread}, "/livez", 503, "[-]serializable_read failed: Unexpected error\n"},
		{"alone", checks{}, "/livez/serializable_read", 200, "ok\n"},
		{"alone, fails", checks{read: unread}, "/livez/serializable_read", 503, "[-]serializable_read failed: Unexpected error\n"},
		{"ready", checks{}, "/readyz", 200, "ok\n"},
		{"not ready with corrupt data", checks{corruption: corrupt}, "/readyz", 503,
			"[-]data_corruption failed: alarm activated: CORRUPT\n[+]serializable_read ok\n"},
		{"not ready if all fails", checks{corrupt, unread}, "/readyz", 503,
			"[-]data_corruption failed: alarm activated: CORRUPT\n[-]serializable_read failed: Unexpected error\n"},
		{"ready without the check that fails", checks{corruption: corrupt}, "/readyz?exclude=data_corruption", 200, "ok\n"},
		{"that, verbose", checks{corruption: corrupt}, "/readyz?exclude=data_corruption&verbose", 200,
			"[+]data_corruption excluded: ok\n[+]serializable_read ok\n    NOW [+]serializable_read ok\nok\n"},
		{"another one is left out", checks{corruption: corrupt}, "/readyz?exclude=serializable_read", 503,
			"[-]data_corruption failed: alarm activated: CORRUPT\n[+]serializable_read excluded: ok\n"},
		{"alone, another group's result does not count", checks{corruption: corrupt}, "/readyz/serializable_read", 200, "ok\n"},
		{"alone, unknown", checks{}, "/readyz/nothing", 404, "readyz has no check \"nothing\", only [data_corruption serializable_read]\n"},
		{"alone, of another group", checks{}, "/livez/data_corruption", 404, "livez has no check \"data_corruption\", only [serializable_read]\n"},
		{"alone, below", checks{}, "/livez/serializable_read/x", 404, "404 page not found\n"},
		{"the root", checks{}, "/", 404, "not found: this is a port for health and metrics, with /livez, /readyz and /metrics\n"},
		// etcd only logs these, and responds with success to the last two.
		{"unknown left out", checks{}, "/readyz?exclude=nothing", 200, "warning: exclude: unknown check \"nothing\"\nok\n"},
		{"unknown left out, fails", checks{corruption: corrupt}, "/readyz?exclude=no%0Athing", 503,
			"warning: exclude: unknown check \"no\\nthing\"\n[-]data_corruption failed: alarm activated: CORRUPT\n[+]serializable_read ok\n"},
		{"all left out", checks{}, "/readyz?exclude=serializable_read&exclude=data_corruption&exclude=x", 400,
			"exclude: must leave at least one check of [data_corruption serializable_read]\n"},
		{"itself left out", checks{}, "/readyz/data_corruption?exclude=data_corruption", 400, "exclude: must leave at least one check of [data_corruption]\n"},
		{"bad query", checks{}, "/readyz?exclude=%zz", 400, "query: invalid URL escape \"%zz\"\n"},
	}
	for _, test := range tests {
		virtual.Run(t, test.name, func(t *testing.T) {
			r := health.New(health.Options{})
			r.Add(health.Livez, health.Check{Name: "serializable_read", Run: result(test.checks.read)})
			r.Add(health.Readyz, health.Check{Name: "data_corruption", Run: result(test.checks.corruption)})
			r.Add(health.Readyz, health.Check{Name: "serializable_read", Run: result(test.checks.read)})
			status, header, body := ask(r, "GET", test.target, fromHere)
			body = strings.ReplaceAll(body, time.Now().UTC().Format(time.RFC3339), "NOW")
			if status != test.status || body != test.body {
				t.Errorf("got %d %q\nwant %d %q", status, body, test.status, test.body)
			}
			if header.Get("Cache-Control") != "no-store" && !strings.HasPrefix(body, "404") {
				t.Errorf("header %v", header)
			}
			if status, _, _ := ask(r, "HEAD", test.target, fromHere); status != test.status {
				t.Errorf("HEAD: got %d, want %d", status, test.status)
			}
		})
	}
}

func TestMethods(t *testing.T) {
	t.Parallel()
	r := health.New(health.Options{})
	for _, path := range []string{"/livez", "/readyz", "/readyz/nothing"} {
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS", "X"} {
			if status, header, _ := ask(r, method, path, fromHere); status != http.StatusMethodNotAllowed || header.Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %s: got %d, Allow %q", method, path, status, header.Get("Allow"))
			}
		}
	}
	if status, _, body := ask(r, "GET", "/livez", fromHere); status != http.StatusOK || body != "ok\n" {
		t.Errorf("without checks: got %d %q", status, body)
	}
}

func TestReasons(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, from string
		header     []string
		shown      bool
	}{
		{"IPv4", fromHere, nil, true},
		{"IPv6", "[::1]:9", nil, true},
		{"IPv4 in IPv6", "[::ffff:127.0.0.1]:9", nil, true},
		{"another host", fromElsewhere, nil, false},
		{"a Unix socket", "@", nil, false},
		{"a name", "localhost:9", nil, false},
		{"a proxy on this host", fromHere, []string{"X-Forwarded-For", "192.0.2.7"}, false},
		{"one that tells the scheme alone", fromHere, []string{"x-forwarded-proto", "https"}, false},
		{"one of another kind", fromHere, []string{"X-Real-IP", "192.0.2.7"}, false},
		{"another kind of proxy", fromHere, []string{"Forwarded", "for=127.0.0.1"}, false},
		{"a proxy that hides its client", fromHere, []string{"Via", "1.1 proxy"}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := health.New(health.Options{})
			r.Add(health.Readyz, health.Check{Name: "view", Run: result(errors.New("10.1.2.3 is away\nfor ever"))})
			_, _, body := ask(r, "GET", "/readyz?verbose", test.from, test.header...)
			if !strings.Contains(body, "[-]view failed: ") || strings.Contains(body, "[-]view failed: 10.1.2.3 is away; for ever\n") != test.shown ||
				strings.Contains(body, "10.1.2.3") != test.shown {
				t.Errorf("got %q, want the reason shown: %t", body, test.shown)
			}
		})
	}
}

// TestResultIsKept checks that many callers cost no more than one.
func TestResultIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs, running, most atomic.Int32
		r := health.New(health.Options{})
		r.Add(health.Readyz, health.Check{Name: "view", Keep: time.Second, Run: func(context.Context) error {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			runs.Add(1)
			<-time.After(100 * time.Millisecond)
			return nil
		}})
		var callers sync.WaitGroup
		for caller := range 10 {
			callers.Go(func() {
				<-time.After(time.Duration(caller) * 10 * time.Millisecond)
				for range 10 {
					if status, _, _ := ask(r, "GET", "/readyz", fromElsewhere); status != http.StatusOK {
						t.Errorf("got %d", status)
					}
					<-time.After(time.Second)
				}
			})
		}
		callers.Wait()
		if runs.Load() > 11 || most.Load() != 1 {
			t.Errorf("%d runs in ten seconds, %d at once", runs.Load(), most.Load())
		}
	})
}

// A failed check with a long Keep runs again soon.
func TestFailureIsKeptForASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runs, err := 0, errors.New("not yet")
		r := health.New(health.Options{})
		r.Add(health.Readyz, health.Check{Name: "xds", Keep: time.Minute, Run: func(context.Context) error { runs++; return err }})
		for i, want := range []int{503, 503, 200, 200, 200} { // each half a second
			if i == 2 {
				err = nil
			}
			if status, _, _ := ask(r, "GET", "/readyz", fromHere); status != want {
				t.Errorf("request %d: got %d, want %d", i, status, want)
			}
			<-time.After(500 * time.Millisecond)
		}
		if runs != 2 {
			t.Errorf("%d runs, want 2", runs)
		}
	})
}

func TestCheckThatHangs(t *testing.T) {
	tests := map[string]bool{"ends with its context": true, "ignores its context": false}
	for name, heeds := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			var runs atomic.Int32
			forever := make(chan struct{})
			r := health.New(health.Options{})
			r.Add(health.Livez, health.Check{Name: "store", Timeout: time.Second, Run: func(ctx context.Context) error {
				if runs.Add(1) > 1 && !heeds {
					t.Error("a second run has begun before the first has ended")
				}
				if heeds {
					<-ctx.Done()
					return ctx.Err()
				}
				<-forever
				return nil
			}})
			r.Add(health.Livez, health.Check{Name: "other", Run: result(nil)})
			for range 3 {
				began := time.Now()
				status, _, body := ask(r, "GET", "/livez", fromHere)
				if want := "[-]store failed: no result within 1s\n[+]other ok\n"; status != 503 || body != want {
					t.Errorf("got %d %q, want %q", status, body, want)
				}
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("the answer took %s", took)
				}
				<-time.After(10 * time.Second)
			}
			close(forever)
			synctest.Wait()
			if status, _, body := ask(r, "GET", "/livez", fromHere); !heeds && status != 200 {
				t.Errorf("after it has returned: %d %q", status, body)
			}
		})
	}
}

func TestCallerThatLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := health.New(health.Options{})
		r.Add(health.Livez, health.Check{Name: "slow", Run: func(context.Context) error { <-time.After(time.Second); return nil }})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if got := r.Results(ctx, health.Livez); got[0].Err == nil {
			t.Errorf("passed before it was run: %+v", got[0])
		}
		if got := r.Results(t.Context(), health.Livez); got[0].Err != nil || len(got[0].Changes) != 1 {
			t.Errorf("a caller that leaves makes others fail: %+v", got[0])
		}
	})
}

func TestPanic(t *testing.T) {
	t.Parallel()
	r := health.New(health.Options{})
	r.Add(health.Livez, health.Check{Name: "x", Run: func(context.Context) error { panic("no") }})
	if status, _, body := ask(r, "GET", "/livez", fromHere); status != 503 || body != "[-]x failed: panic: no\n" {
		t.Errorf("got %d %q", status, body)
	}
}

func TestChangesAndMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		r := health.New(health.Options{Registerer: registry})
		var err error
		r.Add(health.Readyz, health.Check{Name: "view", Run: func(context.Context) error { return err }})
		for i := range 12 {
			err = nil
			if i%3 == 0 { // of three runs, one fails
				err = fmt.Errorf("run %d", i)
			}
			r.Results(t.Context(), health.Readyz)
			<-time.After(2 * time.Second)
		}
		changes := r.Results(t.Context(), health.Readyz)[0].Changes
		if len(changes) != 8 || changes[0].Err == nil || changes[0].Err.Error() != "run 0" || changes[7].Err != nil {
			t.Errorf("changes %v", changes)
		}
		want := `
# HELP sonde_healthcheck Whether the last run of a health check passed (1) or failed (0). All run every 10 s. A check of severity warning does not fail its group.
# TYPE sonde_healthcheck gauge
sonde_healthcheck{group="readyz",name="view",severity="error"} 1
# HELP sonde_healthchecks_total Runs of health checks, by status: success or error.
# TYPE sonde_healthchecks_total counter
sonde_healthchecks_total{group="readyz",name="view",status="error"} 4
sonde_healthchecks_total{group="readyz",name="view",status="success"} 9
`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "sonde_healthcheck", "sonde_healthchecks_total"); err != nil {
			t.Error(err)
		}
	})
}

func TestLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := health.New(health.Options{})
		loop := r.Loop("fan-out", 10*time.Second)
		loop.Begin()
		<-time.After(5 * time.Second)
		if status, _, body := ask(r, "GET", "/livez", fromHere); status != 200 {
			t.Errorf("while it works: %d %q", status, body)
		}
		<-time.After(6 * time.Second)
		status, _, body := ask(r, "GET", "/livez/loop-fan-out", fromHere)
		if status != 503 || !strings.Contains(body, `[-]loop-fan-out failed: loop "fan-out" has made no progress since `) {
			t.Errorf("while it is stuck: %d %q", status, body)
		}
		loop.End()
		<-time.After(time.Second)
		if status, _, _ := ask(r, "GET", "/livez", fromHere); status != 200 {
			t.Errorf("after it goes on: %d", status)
		}
	})
}

func TestTwoChecksOfOneName(t *testing.T) {
	t.Parallel()
	r := health.New(health.Options{})
	r.Add(health.Livez, health.Check{Name: "x", Run: result(nil)})
	r.Add(health.Readyz, health.Check{Name: "x", Run: result(nil)})
	defer func() {
		if recover() == nil {
			t.Error("a check was lost")
		}
	}()
	r.Add(health.Livez, health.Check{Name: "x", Run: result(nil)})
}

// An informational check is shown, but fails neither a page nor gRPC.
func TestInformational(t *testing.T) {
	away := errors.New("the API server is away")
	tests := map[string]struct {
		view   error
		target string
		status int
		body   string
	}{
		"ready":                     {nil, "/readyz", 200, "ok\n"},
		"verbose":                   {nil, "/readyz?verbose&exclude=view2", 200, "[+]view ok\n    NOW [+]view ok\n[+]view2 excluded: ok\n[!]store warning: the API server is away\n    NOW [!]store warning: the API server is away\nok\n"},
		"another one fails":         {errors.New("none"), "/readyz", 503, "[-]view failed: none\n[+]view2 ok\n[!]store warning: the API server is away\n"},
		"alone":                     {nil, "/readyz/store", 200, "ok\n"},
		"left out":                  {nil, "/readyz?exclude=store", 200, "ok\n"},
		"what counts is left out":   {nil, "/readyz?exclude=view&exclude=view2", 400, "exclude: must leave at least one check of [view view2 store]\n"},
		"alone, and that left out":  {nil, "/readyz/view?exclude=view", 400, "exclude: must leave at least one check of [view]\n"},
		"a warning alone, left out": {nil, "/readyz/store?exclude=store", 400, "exclude: must leave at least one check of [store]\n"},
		"what fails is left out":    {errors.New("none"), "/readyz?exclude=view", 200, "ok\n"},
		"alone, another one fails":  {errors.New("none"), "/readyz/store", 200, "ok\n"},
		"another group has nothing": {nil, "/livez", 200, "ok\n"},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			r := health.New(health.Options{})
			r.Add(health.Readyz, health.Check{Name: "view", Run: result(tc.view)})
			r.Add(health.Readyz, health.Check{Name: "view2", Run: result(nil)})
			r.Add(health.Readyz, health.Check{Name: "store", Run: result(away), Informational: true})
			status, _, body := ask(r, "GET", tc.target, fromHere)
			if body = strings.ReplaceAll(body, time.Now().UTC().Format(time.RFC3339), "NOW"); status != tc.status || body != tc.body {
				t.Errorf("got %d %q\nwant %d %q", status, body, tc.status, tc.body)
			}
		})
	}
}

// waitFor has a name that is easy to find in a stack.
func waitFor(done <-chan struct{}, loop *heartbeat.Loop) {
	loop.Begin()
	<-done
	loop.End()
}

// TestStackOfALoop looks in the log for the stack of a hanging loop among thousands of newer goroutines.
func TestStackOfALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r := health.New(health.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		loop := r.Loop("fan-out", time.Second)
		done := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() { waitFor(done, loop) })
		for range 5000 {
			all.Go(func() { <-done })
		}
		defer all.Wait()
		defer close(done)
		synctest.Wait()
		for range 2 {
			time.Sleep(time.Minute)
			ask(r, "GET", "/livez", fromHere)
		}
		if text := log.String(); strings.Count(text, "loop is stuck") != 1 || !strings.Contains(text, "health_test.waitFor") || len(text) > 600<<10 {
			t.Errorf("want the stack of the loop once in the log of %d bytes:\n%.2000s", len(text), text)
		}
	})
}
