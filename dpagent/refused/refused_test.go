package refused

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

func TestKeyOf(t *testing.T) {
	tests := map[string]struct {
		want key
		ours bool
	}{
		"cluster.inbound_8080.upstream_cx_protocol_error":        {key{agentv1.CauseAnswers, "inbound 8080"}, true},
		"http.inbound_8080.downstream_rq_ws_on_non_ws_route":     {key{agentv1.CauseUpgrades, "inbound 8080"}, true},
		"http.outbound_db_shop.downstream_rq_ws_on_non_ws_route": {key{agentv1.CauseUpgrades, "service db_shop"}, true},
		"http.inbound_80.downstream_rq_non_relative_path":        {key{agentv1.CauseRequests, "inbound 80"}, true},
		"http.inbound_80.downstream_cx_protocol_error":           {key{agentv1.CauseRequests, "inbound 80"}, true},
		"http.inbound_80.downstream_rq_too_large":                {key{agentv1.CauseRequests, "inbound 80"}, true},
		"http.inbound_readiness.downstream_cx_protocol_error":    {},
		"http.admin.downstream_cx_protocol_error":                {},
		"cluster.db.upstream_cx_protocol_error":                  {},
		"http.inbound_80.downstream_rq_total":                    {},
	}
	for counter, tc := range tests {
		if got, ours := keyOf(counter); ours != tc.ours || ours && got != tc.want {
			t.Errorf("keyOf(%q) = %v, %t, want %v, %t", counter, got, ours, tc.want, tc.ours)
		}
	}
}

// fakeEnvoy responds with its page.
type fakeEnvoy struct {
	mu   sync.Mutex
	page string
	down bool
}

func (e *fakeEnvoy) set(page string, down bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.page, e.down = page, down
}

func (e *fakeEnvoy) Get(context.Context, string) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return []byte(e.page), nil
}

func (e *fakeEnvoy) Running() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down {
		return errors.New("down")
	}
	return nil
}

// TestRun makes an Envoy refuse responses, be quiet for a minute, and restart.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		ctx, cancel := context.WithCancel(t.Context())
		e := &fakeEnvoy{}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.Run(ctx, e)
		}()
		down := false
		after := func(pause time.Duration, page string, want ...string) {
			t.Helper()
			e.set(page, down)
			time.Sleep(pause)
			synctest.Wait()
			var got []string
			for _, r := range c.Report().GetRefusals() {
				got = append(got, r.Sentence())
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		}
		const counter = "cluster.inbound_8080.upstream_cx_protocol_error: "
		says := func(n string) string {
			return "answers of the application that HTTP clients accept and Envoy does not, inbound 8080: " + n + " in the last minute"
		}
		after(readEvery, "")
		after(readEvery, counter+"10\n", says("10"))
		select {
		case <-c.Due():
		default:
			t.Error("nothing is due after a refusal")
		}
		after(readEvery, counter+"12\n", says("12"))
		after(window+readEvery, counter+"12\n")
		down = true
		after(readEvery, counter+"99\n")
		down = false
		after(readEvery, counter+"3\n", says("3")) // another Envoy
		if got := testutil.ToFloat64(c.total.WithLabelValues("answers")); got != 15 {
			t.Errorf("the metric is %v, want 15", got)
		}
		cancel()
		<-ended
	})
}
