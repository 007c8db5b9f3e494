package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watch runs a source in a bubble while test does what pages do.
func watch(t *testing.T, call Call, test func(s *source)) {
	t.Helper()
	watchClusters(t, call, noClusters, test)
}

// watchClusters is watch of a source that also reads clusters.
func watchClusters(t *testing.T, call Call, clusters func() (Clusters, error), test func(s *source)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSource(call, clusters)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.run(ctx) })
		running.Go(func() { s.runClusters(ctx) })
		test(s)
		cancel()
		running.Wait()
	})
}

// lookFor has a page ask for its state twice a second, as pages do.
func lookFor(s *source, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		s.look()
	}
}

func TestReadsOnlyWhileAPageIsOpen(t *testing.T) {
	readings := new(atomic.Int64)
	api := wellAPI()
	call := func(ctx context.Context, _ time.Duration, work func(context.Context, adminv1.AdminServiceClient) error) error {
		return work(ctx, counting{api, readings})
	}
	watch(t, call, func(s *source) {
		synctest.Wait()
		if n := readings.Load(); n != 0 {
			t.Errorf("%d readings before a page is open", n)
		}
		lookFor(s, time.Minute)
		if n := readings.Load(); n < 58 || n > 62 {
			t.Errorf("%d readings in a minute, want one in a second", n)
		}
		time.Sleep(2 * unseenAfter)
		before := readings.Load()
		time.Sleep(time.Hour)
		if n := readings.Load(); n != before {
			t.Errorf("%d readings without a page", n-before)
		}
		s.look()
		synctest.Wait()
		if readings.Load() != before+1 {
			t.Error("it does not read at once for the next page")
		}
	})
}

// counting counts readings, by the call that each has once.
type counting struct {
	*fakeAPI
	readings *atomic.Int64
}

func (c counting) GetHealth(ctx context.Context, r *adminv1.GetHealthRequest, o ...grpc.CallOption) (*adminv1.Health, error) {
	c.readings.Add(1)
	return c.fakeAPI.GetHealth(ctx, r, o...)
}

// A control plane that needs long for an answer is asked less often.
func TestSlowControlPlaneIsAskedLess(t *testing.T) {
	readings := new(atomic.Int64)
	api := wellAPI()
	call := func(ctx context.Context, _ time.Duration, work func(context.Context, adminv1.AdminServiceClient) error) error {
		return work(ctx, slow{counting{api, readings}, time.Second})
	}
	watch(t, call, func(s *source) {
		lookFor(s, time.Minute)
		if n := readings.Load(); n < 5 || n > 7 { // 1 s, and 9 s of pause
			t.Errorf("%d readings in a minute, want six", n)
		}
		if _, due := s.look(); time.Until(due) <= 0 {
			t.Error("the page takes the pause for blindness")
		}
	})
}

// A reading that takes longer than readPatience each time is no blindness.
func TestLongReadingsAreNotBlind(t *testing.T) {
	api := slow{counting{wellAPI(), new(atomic.Int64)}, 6 * time.Second}
	watch(t, callOf(api), func(s *source) {
		lookFor(s, 10*time.Second)
		for range 600 {
			if _, due := s.look(); time.Until(due) <= 0 {
				t.Errorf("the page is blind for %s", time.Since(due))
				return
			}
			time.Sleep(500 * time.Millisecond)
		}
	})
}

// A control plane whose answers are errors is asked less often, too, as long as they take time.
func TestFailingControlPlaneIsAskedLess(t *testing.T) {
	for takes, most := range map[time.Duration]int64{0: 301, 2 * time.Second: 16, 8 * time.Second: 8} {
		readings := new(atomic.Int64)
		api := wellAPI()
		api.errs["health"] = errors.New("broken")
		watch(t, callOf(slow{counting{api, readings}, takes}), func(s *source) {
			lookFor(s, 5*time.Minute)
			if n := readings.Load(); n > most || n < most-3 {
				t.Errorf("%d readings of %s in five minutes, want at most %d", n, takes, most)
			}
		})
	}
}

// An agent that hangs makes only the readings slow that ask agents.
func TestAgentThatHangsDoesNotSlowReadings(t *testing.T) {
	readings := new(atomic.Int64)
	api := wellAPI()
	call := func(ctx context.Context, _ time.Duration, work func(context.Context, adminv1.AdminServiceClient) error) error {
		return work(ctx, hanging{counting{api, readings}})
	}
	watch(t, call, func(s *source) {
		lookFor(s, time.Minute)
		if n := readings.Load(); n < 45 || api.asked.Load() > 5 {
			t.Errorf("%d readings in a minute, of which %d asked agents, want nearly one in a second, and five", n, api.asked.Load())
		}
	})
}

// hanging waits for an agent that does not answer.
type hanging struct{ counting }

func (a hanging) ListProxies(ctx context.Context, r *adminv1.ListProxiesRequest, o ...grpc.CallOption) (*adminv1.ListProxiesResponse, error) {
	if r.GetAsk() {
		time.Sleep(status.AskTakes)
	}
	return a.counting.ListProxies(ctx, r, o...)
}

type slow struct {
	counting
	takes time.Duration
}

func (a slow) GetHealth(ctx context.Context, r *adminv1.GetHealthRequest, o ...grpc.CallOption) (*adminv1.Health, error) {
	time.Sleep(a.takes)
	return a.counting.GetHealth(ctx, r, o...)
}

func TestBlindSinceTheLastReading(t *testing.T) {
	away := errors.New("the control plane at 127.0.0.1:5681 cannot be reached: connection refused")
	var down atomic.Bool
	call := func(ctx context.Context, _ time.Duration, work func(context.Context, adminv1.AdminServiceClient) error) error {
		if down.Load() {
			return away
		}
		return work(ctx, killed{wellAPI(), &down, away})
	}
	watch(t, call, func(s *source) {
		lookFor(s, 10*time.Second)
		down.Store(true) // on the connection that is open, too
		lookFor(s, time.Minute)
		sections, due := s.look()
		for _, p := range parts {
			name, section := p.name, sections[p.name]
			if section.Error != away.Error() || section.ReadAt == nil || time.Since(*section.ReadAt) < 59*time.Second {
				t.Errorf("%s: read %v, error %q", name, section.ReadAt, section.Error)
			}
		}
		if time.Until(due) > 0 {
			t.Error("a reading is due later")
		}
		down.Store(false)
		lookFor(s, 3*time.Second)
		sections, _ = s.look()
		for _, p := range parts {
			name, section := p.name, sections[p.name]
			if section.Error != "" || time.Since(*section.ReadAt) > 2*time.Second {
				t.Errorf("%s: it is back, and read %v, error %q", name, section.ReadAt, section.Error)
			}
		}
	})
}

// killed answers while the control plane is not down.
type killed struct {
	*fakeAPI
	down *atomic.Bool
	away error
}

func (k killed) ListMeshes(ctx context.Context, r *adminv1.ListMeshesRequest, o ...grpc.CallOption) (*adminv1.ListMeshesResponse, error) {
	if k.down.Load() {
		return nil, k.away
	}
	return k.fakeAPI.ListMeshes(ctx, r, o...)
}

// Agents are asked now and then whether they live. Between, one that hangs does not look well.
func TestAgentsThatHang(t *testing.T) {
	api := wellAPI()
	api.proxies[0].Agent.Unresponsive = true
	s := newSource(callOf(api), noClusters)
	for range 3 {
		if err := s.once(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, data, _ := s.section("proxies")
		var proxies Proxies
		if err := json.Unmarshal(data, &proxies); err != nil {
			t.Fatal(err)
		}
		if proxies.Rows[0].Level != Bad {
			t.Errorf("the proxy is %s: %v", proxies.Rows[0].Level, proxies.Rows[0].Notes)
		}
		api.proxies[0].Agent.Unresponsive = false // which only an answer to a question has
	}
	if n := api.asked.Load(); n != 1 {
		t.Errorf("the agents were asked %d times", n)
	}
	api.proxies[0].Agent.ConnectedSince = timestamppb.New(at.Add(time.Hour))
	if err := s.once(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, data, _ := s.section("proxies")
	var proxies Proxies
	if err := json.Unmarshal(data, &proxies); err != nil {
		t.Fatal(err)
	}
	if proxies.Rows[0].Level != Good {
		t.Errorf("it has a new session, and is %s: %v", proxies.Rows[0].Level, proxies.Rows[0].Notes)
	}
}

func TestNothingMayBeRead(t *testing.T) {
	api := wellAPI()
	for _, of := range []string{"health", "objects", "restarts"} {
		api.errs[of] = errForbidden
	}
	if err := newSource(callOf(api), noClusters).once(t.Context()); err == nil || err.Error() != "not allowed" {
		t.Errorf("the error is %v", err)
	}
}
