package restarts

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// A restart that has not helped is written even if the next one is granted in the same round, so the next leader
// counts both.
func TestOutcomeOfReplacedGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 4)
		stop := a.lead(7)
		a.fail("web-0")
		wait(time.Second)
		p := a.pod("web-0")
		p.Status.ContainerStatuses[0].RestartCount++
		a.setPod(p)
		wait(time.Minute)
		a.want("web-0 app 3.0 epoch 7 unhelpful", "web-0 app 4.0 epoch 7")
		p = a.pod("web-0")
		p.Status.ContainerStatuses[0].RestartCount++
		a.setPod(p)
		a.fail("web-0") // once more
		wait(time.Second)
		stop()
		defer a.lead(8)()
		wait(time.Minute)
		a.want("web-0 app 3.0 epoch 7 unhelpful", "web-0 app 4.0 epoch 7 unhelpful")
	})
}

// While a watch is late, a status that the API server has accepted is not written again. A rejected one is, as are
// later ones.
func TestStatusIsWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 4)
		a.put(grantOfPod("web-0"), "web-0", 7)
		a.late, a.latency = true, 3*time.Second
		lost := 2
		a.answer = func(r *http.Request) int {
			if r.Method == http.MethodPatch && lost > 0 {
				lost--
				return http.StatusInternalServerError
			}
			return -1
		}
		defer a.lead(8)()
		wait(time.Minute)
		a.want("web-0 app 3.0 epoch 8")
		if n := len(statusPatches(a)); n != 3 {
			t.Errorf("%d writes of the epoch, want two failures and one success", n)
		}
		p := a.pod("web-0")
		p.Status.ContainerStatuses[0].RestartCount++
		a.setPod(p)
		wait(time.Minute)
		a.want("web-0 app 3.0 epoch 8 spent")
		if n := len(statusPatches(a)); n != 4 {
			t.Errorf("%d writes with the restart, want one more", n)
		}
	})
}

// This leader's clock is two hours ahead of the clock of the leader that granted the restart in progress.
func TestGrantInProgressIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 4)
		old := grantOfPod("web-0")
		old.Granted = time.Now().Add(-2 * time.Hour)
		a.put(old, "web-0", 7)
		stop := a.lead(8)
		wait(time.Minute)
		a.want("web-0 app 3.0 epoch 8")
		stop()
		defer a.lead(9)()
		a.fail("web-1")
		wait(time.Second)
		a.want("web-0 app 3.0 epoch 9")
		wait(restartbudget.InProgress + time.Minute)
		a.want("web-1 app 3.0 epoch 9")
	})
}

// A deposed leader that has seen the probe pass says so late, before or after this leader has judged the restart.
func TestJudgmentOfADeposedLeader(t *testing.T) {
	for name, before := range map[string]bool{"before": true, "after": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPI(t, restartbudget.Settings{})
				a.deploy("web", 4)
				other := grantOfPod("web-1")
				other.Outcome, other.Granted = restartbudget.Unhelpful, time.Now().Add(-30*time.Minute)
				other.Spent, other.Ended, other.Judged = other.Granted, other.Granted, other.Granted
				a.put(other, "web-1", 7)
				late := grantOfPod("web-0")
				late.ID.Restarts, late.Granted = 2, time.Now().Add(-time.Minute)
				late.Outcome, late.Spent = restartbudget.Spent, late.Granted
				a.put(late, "web-0", 7)
				defer a.lead(8)()
				wait(2 * restartbudget.CatchUp)
				helped := func() {
					late.Outcome, late.Judged = restartbudget.Helped, late.Granted.Add(time.Minute)
					a.put(late, "web-0", 7)
					wait(time.Second)
				}
				if before {
					helped()
				}
				a.fail("web-0")
				wait(time.Minute)
				if !before {
					a.want("web-0 app 2.0 epoch 7 unhelpful", "web-1 app 3.0 epoch 7 unhelpful") // and the workload waits
					helped()
				}
				wait(time.Minute)
				a.want("web-0 app 2.0 epoch 7 helped", "web-0 app 3.0 epoch 8", "web-1 app 3.0 epoch 7 unhelpful")
			})
		})
	}
}

// A used grant is kept until the leader knows whether the restart has helped, whatever its clock says.
func TestGrantIsKeptUntilJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 4)
		old := grantOfPod("web-0")
		old.ID.Restarts, old.Granted = 2, time.Now().Add(-2*time.Hour)
		old.Outcome, old.Spent, old.Ended = restartbudget.Spent, old.Granted, old.Granted
		a.put(old, "web-0", 7)
		defer a.lead(8)()
		wait(time.Minute)
		a.want("web-0 app 2.0 epoch 7 spent")
		a.pass("web-0")
		wait(time.Minute)
		a.want()
	})
}

// A leader that was stopped writes a grant as it wakes, and leads again before another leader has seen the grant. It
// takes the grant back, as that leader would.
func TestOwnLateGrantIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 4)
		began := time.Now().Truncate(time.Second)
		for pod, by := range map[string]struct {
			epoch int64
			after time.Duration
		}{"web-0": {7, 0}, "web-1": {8, 20 * time.Second}, "web-2": {7, 20 * time.Second}, "web-3": {7, 30 * time.Second}} {
			a.putAt(began.Add(by.after), grantOfPod(pod), pod, by.epoch)
		}
		wait(40 * time.Second)
		defer a.lead(9)()
		a.fail("web-0", "web-1", "web-2", "web-3")
		wait(time.Second)
		a.want("web-0 app 3.0 epoch 9", "web-1 app 3.0 epoch 9", "web-2 app 3.0 epoch 9", "web-3 app 3.0 epoch 7 refunded")
	})
}

// Neither a restarted sidecar nor a new leader knows that the container has already restarted by a grant.
func TestGrantOfAnEarlierLeaderIsGivenBackLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 4)
		for _, pod := range []string{"web-0", "web-1"} {
			a.put(grantOfPod(pod), pod, 7)
			a.say(pod, &agentv1.Liveness{Unused: []string{a.nameOf(pod)}})
		}
		defer a.lead(8)()
		wait(restartbudget.CatchUp / 2)
		a.want("web-0 app 3.0 epoch 8", "web-1 app 3.0 epoch 8")
		p := a.pod("web-0")
		p.Status.ContainerStatuses[0].RestartCount++
		a.setPod(p)
		wait(restartbudget.CatchUp)
		a.want("web-0 app 3.0 epoch 8 spent", "web-1 app 3.0 epoch 8 refunded")
	})
}
