package restarts

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// neverOpen disables the breaker, for tests in which many containers fail at once.
var neverOpen = restartbudget.Settings{Breaker: restartbudget.BreakerLimits{Workloads: 1 << 20}}

// lead makes a replica lead until the returned function is called.
func (a *api) lead(epoch int64) (stop func()) {
	a.t.Helper()
	return a.run(func(ctx context.Context) error { return a.r.Lead(ctx, epoch) })
}

// run runs a task until stop is called.
func (a *api) run(task func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(a.t.Context())
	ended := make(chan error)
	go func() { ended <- task(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			a.t.Error(err)
		}
	}
}

// wait lets time pass.
func wait(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// want compares the grants in the API.
func (a *api) want(want ...string) {
	a.t.Helper()
	if diff := cmp.Diff(want, a.all()); diff != "" {
		a.t.Fatalf("grants (-want +got):\n%s", diff)
	}
}

// grantOfPod returns a grant of the container app of a pod of deploy, which has restarted three times.
func grantOfPod(name string) restartbudget.Grant {
	return restartbudget.Grant{
		ID:       restartbudget.GrantID{ContainerKey: restartbudget.ContainerKey{PodUID: "uid-" + name, Name: "app"}, Restarts: 3},
		Workload: restartbudget.WorkloadID{Kind: "Deployment", Namespace: "shop", Name: name[:strings.LastIndex(name, "-")]}, Node: "node1", Template: "5d4f", Granted: time.Now(),
	}
}

// told returns the decisions that the agent of a pod in the namespace shop receives, as container and epoch.
func (a *api) toldTo(pod string) []string {
	a.t.Helper()
	a.r.mu.Lock()
	a.r.policies = map[watch.Key]*agentv1.Restarts{}
	a.r.mu.Unlock()
	orders := a.r.Of(proxyOf(watch.Key{Namespace: "shop", Name: pod}))
	if orders == nil {
		a.t.Fatal("the decisions for agents are missing")
	}
	var all []string
	for _, o := range orders.GetGrants() {
		all = append(all, fmt.Sprintf("%s %s %d", o.GetName()[strings.Index(o.GetName(), "app"):strings.LastIndex(o.GetName(), ".")], o.GetContainer(), o.GetEpoch()))
	}
	return all
}

// A grant of an earlier leader counts against the budget of the next leader, which confirms it to the agent.
func TestGrantOfAnEarlierLeaderIsAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 4)
		a.put(grantOfPod("web-0"), "web-0", 7)
		defer a.lead(8)()
		a.fail("web-0", "web-1")
		wait(time.Second)
		a.want("web-0 app 3.0 epoch 8")
		if diff := cmp.Diff([]string{"app.3.0 app 8"}, a.toldTo("web-0")); diff != "" {
			t.Errorf("the agent gets (-want +got):\n%s", diff)
		}
		wait(time.Minute)
		if n := len(statusPatches(a)); n != 1 {
			t.Errorf("%d writes of the status, want 1", n)
		}
		p := a.pod("web-0")
		p.Status.ContainerStatuses[0].RestartCount++
		a.setPod(p)
		a.pass("web-0")
		wait(time.Second)
		a.want("web-0 app 3.0 epoch 8 helped", "web-1 app 3.0 epoch 8")
	})
}

func statusPatches(a *api) []request {
	return slices.DeleteFunc(a.sent(), func(r request) bool { return r.what != "PATCH restartgrants" })
}

// The new leader's watch may lack the last grant of the previous leader, so the leader reads it from the API server.
func TestLeaderReadsGrantsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 4)
		key := a.put(grantOfPod("web-0"), "web-0", 7)
		if err := a.r.grants.Delete(a.grants[key]); err != nil { // the watch delivers it later
			t.Fatal(err)
		}
		defer a.lead(8)()
		a.fail("web-1")
		wait(time.Second)
		a.want("web-0 app 3.0 epoch 7")
		if err := a.r.grants.Add(a.grants[key]); err != nil {
			t.Fatal(err)
		}
		wait(time.Second)
		a.want("web-0 app 3.0 epoch 8")
	})
}

// A grant of a deposed leader that was written late counts, since its agent may have used it at once, but is refunded.
func TestLateGrantIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 4)
		defer a.lead(8)()
		wait(time.Second)
		a.put(grantOfPod("web-0"), "web-0", 7)
		wait(time.Second)
		if got := a.toldTo("web-0"); len(got) > 0 {
			t.Errorf("the agent gets %q", got)
		}
		a.fail("web-1")
		wait(time.Minute)
		a.want("web-0 app 3.0 epoch 7 refunded")
		a.pass("web-1")
		wait(restartbudget.InProgress)
		a.want("web-0 app 3.0 epoch 7 refunded")
		a.fail("web-1")
		wait(time.Second)
		a.want("web-0 app 3.0 epoch 7 refunded", "web-1 app 3.0 epoch 8")
	})
}

// If an earlier leader left two grants of one container open, because a write failed, the first one ends, so that an
// agent never has two.
func TestEarlierTryEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 4)
		second := grantOfPod("web-0")
		second.ID.Try = 1
		a.put(grantOfPod("web-0"), "web-0", 7)
		a.put(second, "web-0", 7)
		if diff := cmp.Diff([]string{"app.3.1 app 7"}, a.toldTo("web-0")); diff != "" {
			t.Errorf("before a leader has ended the first grant, the agent gets (-want +got):\n%s", diff)
		}
		defer a.lead(8)()
		wait(time.Second)
		a.want("web-0 app 3.0 epoch 7 refunded", "web-0 app 3.1 epoch 8")
	})
}

// A pod of a StatefulSet has the name of its predecessor, but not its grants.
func TestGrantIsOfOnePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 1)
		a.put(grantOfPod("web-0"), "web-0", 7)
		p := a.pod("web-0")
		p.UID = "another"
		a.told = nil
		a.setPod(p)
		if got := a.toldTo("web-0"); got != nil || len(a.told) == 0 {
			t.Errorf("the agent of the next pod gets %q, after %d wakes", got, len(a.told))
		}
	})
}

// When 500 pods fail at once, the first grants are written within a second, other writes wait, and the request rate
// stays within its limit.
func TestWritesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, neverOpen)
		var pods []string
		for i := range 100 {
			name := fmt.Sprint("web", i)
			a.deploy(name, 5)
			for j := range 5 {
				pods = append(pods, fmt.Sprint(name, "-", j))
			}
		}
		defer a.lead(1)()
		wait(time.Second)
		began := time.Now()
		a.fail(pods...)
		wait(time.Second)
		if n := len(a.all()); n < 35 {
			t.Errorf("%d grants after a second, want most of %d", n, writesPerSecond)
		}
		if i := slices.IndexFunc(a.sent(), func(r request) bool { return strings.HasSuffix(r.what, " pods") }); i >= 0 {
			t.Errorf("a condition is written before the grants are: request %d", i)
		}
		wait(15 * time.Second)
		conditions := map[string]int{}
		for _, r := range a.sent() {
			if r.what == "PATCH pods" {
				conditions[r.object]++
			}
		}
		if len(a.all()) != 100 || len(conditions) != 400 {
			t.Errorf("%d grants and %d conditions, want 100 and 400", len(a.all()), len(conditions))
		}
		for pod, n := range conditions {
			if n != 1 {
				t.Errorf("the condition of %s is written %d times, want once", pod, n)
			}
		}
		within(t, slices.DeleteFunc(a.sent(), func(r request) bool { return r.at.Before(began) }))
	})
}

// within fails if there are more requests in any second than allowed.
func within(t *testing.T, all []request) {
	t.Helper()
	for i := writesPerSecond; i < len(all); i++ {
		if span := all[i].at.Sub(all[i-writesPerSecond].at); span < time.Second {
			t.Fatalf("%d requests within %s", writesPerSecond+1, span)
		}
	}
}

// While the API server does not answer, grants keep counting against the budget, the queue does not grow, and no loop
// is reported as stuck.
func TestStuckAPIServer(t *testing.T) {
	for name, answer := range map[string]func(*http.Request) int{
		"no answer": func(*http.Request) int { return 0 },
		"500":       func(*http.Request) int { return http.StatusInternalServerError },
		"429":       func(*http.Request) int { return http.StatusTooManyRequests },
	} {
		virtual.Run(t, name, func(t *testing.T) {
			a := newAPI(t, neverOpen)
			loops := []*heartbeat.Loop{heartbeat.New("decisions", time.Minute), heartbeat.New("writes", time.Minute)}
			a.r.o.Loop, a.r.o.Writes = loops[0], loops[1]
			for i := range 10 {
				a.deploy(fmt.Sprint("web", i), 4)
			}
			defer a.lead(1)()
			wait(time.Second)
			before := len(a.sent())
			a.setAnswer(answer)
			for i := range 10 {
				a.fail(fmt.Sprintf("web%d-0", i), fmt.Sprintf("web%d-1", i))
			}
			for range 300 {
				wait(time.Second)
				for _, l := range loops {
					if err := l.Check(); err != nil {
						t.Fatal(err)
					}
				}
			}
			if n := len(a.sent()) - before; n > 300*writesAtOnce+writesBurst {
				t.Errorf("%d requests in five minutes to an API server that does not answer", n)
			}
			if n := len(a.r.Round().Decisions); n != 20 {
				t.Errorf("%d decisions, want 20", n)
			}
			a.setAnswer(nil)
			wait(30 * time.Second)
			var want []string
			for i := range 10 {
				want = append(want, fmt.Sprintf("web%d-0 app 3.0 epoch 1", i))
			}
			a.want(want...)
		})
	}
}

func (a *api) setAnswer(answer func(*http.Request) int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = answer
}

// A loop of writes that hangs is detected, for example because a request ignores its timeout.
func TestHangIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loop := heartbeat.New("writes", time.Minute)
		w := newWriter(slog.New(slog.DiscardHandler), loop, func() {})
		ctx, cancel := context.WithCancel(t.Context())
		ended, release := make(chan struct{}), make(chan struct{})
		go func() { w.run(ctx); close(ended) }()
		for i := range 2 * writesAtOnce {
			w.put(writeID{classDelete, watch.Key{Name: strconv.Itoa(i)}}, func(context.Context) error { <-release; return nil })
		}
		wait(2 * time.Minute)
		if loop.Check() == nil {
			t.Error("the hung loop is not detected")
		}
		close(release)
		wait(time.Second)
		if err := loop.Check(); err != nil {
			t.Errorf("the loop continues: %v", err)
		}
		cancel()
		<-ended
	})
}

// A grant that the API server rejects is refunded, and its container requests another one later. Other grants are not
// affected.
func TestRefusedGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 4)
		refused := 0
		a.setAnswer(func(r *http.Request) int {
			if r.Method == http.MethodPost && refused == 0 {
				refused++
				return http.StatusForbidden
			}
			return -1
		})
		defer a.lead(1)()
		a.fail("web-0")
		wait(100 * time.Millisecond)
		a.fail("web-1")
		wait(2 * time.Second)
		a.want("web-1 app 3.0 epoch 1")
		a.pass("web-1")
		a.say("web-1", &agentv1.Liveness{Passing: []string{"app"}, Unused: []string{a.nameOf("web-1")}})
		wait(pauseAfterRefusal)
		a.want("web-0 app 3.1 epoch 1", "web-1 app 3.0 epoch 1 refunded")
	})
}

// nameOf returns the name of the grant of a pod.
func (a *api) nameOf(pod string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, g := range a.grants {
		if g.Spec.Pod == pod {
			return key.Name
		}
	}
	a.t.Fatalf("no grant of %s", pod)
	return ""
}

// A grant that was not sent is withdrawn if its container's probe passes meanwhile.
func TestWaitingGrantIsWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, neverOpen)
		a.deploy("web", 4)
		a.mu.Lock()
		a.latency = writeTimeout / 2
		a.mu.Unlock()
		for i := range writesAtOnce {
			a.deploy(fmt.Sprint("busy", i), 1)
			a.fail(fmt.Sprintf("busy%d-0", i))
		}
		defer a.lead(1)()
		wait(writeTimeout/2 + time.Second) // after the list
		a.fail("web-0")
		wait(time.Second)
		a.pass("web-0")
		a.fail("web-1")
		wait(2 * writeTimeout)
		all := slices.DeleteFunc(a.all(), func(g string) bool { return strings.HasPrefix(g, "busy") })
		if diff := cmp.Diff([]string{"web-1 app 3.0 epoch 1"}, all); diff != "" {
			t.Errorf("grants (-want +got):\n%s", diff)
		}
	})
}

// The outcome of a grant is written even if its container gets another grant in the same round, and even if the first
// write fails.
func TestOutcomeBeforeTheNextGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 1)
		defer a.lead(8)()
		a.fail("web-0")
		wait(time.Second)
		a.say("web-0", &agentv1.Liveness{}) // it has used the grant
		p := a.pod("web-0")
		p.Status.ContainerStatuses[0].RestartCount++
		a.setPod(p)
		wait(time.Second)
		refused := false
		a.mu.Lock()
		a.answer = func(r *http.Request) int {
			if r.Method != http.MethodPatch || refused {
				return -1
			}
			refused = true
			return http.StatusInternalServerError
		}
		a.mu.Unlock()
		a.fail("web-0")
		wait(time.Minute)
		a.want("web-0 app 3.0 epoch 8 unhelpful", "web-0 app 4.0 epoch 8")
		if !refused {
			t.Error("the first try did not fail")
		}
	})
}
