package restarts

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// condition returns the condition sonde.dev/LivenessHeld of a pod, without its time.
func (a *api) condition(pod string) string {
	for _, c := range a.pod(pod).Status.Conditions {
		if c.Type == mesh.ConditionLivenessHeld {
			text, _, _ := strings.Cut(c.Message, "; failing since")
			return fmt.Sprintf("%s %s %s", c.Status, c.Reason, text)
		}
	}
	return ""
}

func TestCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 4)
		stop := a.lead(1)
		a.fail("web-0", "web-1")
		wait(2 * time.Second)
		const held = "True InProgress app: 1 of 1 restarts are in progress (the default, 25 %)"
		if got := a.condition("web-1"); got != held || a.condition("web-0") != "" {
			t.Errorf("conditions %q of the held pod, %q of the pod with a grant", got, a.condition("web-0"))
		}
		p := a.pod("web-1")
		p.Annotations[mesh.AnnotationLiveness] = "suspended"
		a.setPod(p)
		wait(time.Second)
		if got := a.condition("web-1"); got != held {
			t.Errorf("condition %q is written again too early", got)
		}
		wait(conditionEvery)
		if got := a.condition("web-1"); got != "True Suspended app: the pod is annotated sonde.dev/liveness: suspended" {
			t.Errorf("condition %q of a suspended pod", got)
		}
		stop()
		a.mu.Lock()
		delete(a.liveness, watch.Key{Namespace: "shop", Name: "web-1"})
		a.mu.Unlock()
		defer a.lead(2)()
		wait(conditionGrace / 2)
		if got := a.condition("web-1"); !strings.HasPrefix(got, "True ") {
			t.Errorf("condition %q, before the agent has reported to the next leader", got)
		}
		a.pass("web-1")
		wait(time.Second)
		if got := a.condition("web-1"); got != "False NotHeld " {
			t.Errorf("condition %q once nothing is held", got)
		}
		wait(time.Hour)
		n := 0
		for _, r := range a.sent() {
			if r.what == "PATCH pods" {
				n++
			}
		}
		if n != 3 {
			t.Errorf("%d writes of conditions, want 3", n)
		}
	})
}

// Without the right, as before Kubernetes 1.30, everything is written except the condition.
func TestConditionsWithoutRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, restartbudget.Settings{})
		a.deploy("web", 4)
		a.setAnswer(func(r *http.Request) int {
			if strings.Contains(r.URL.Path, "/pods/") {
				return http.StatusForbidden
			}
			return -1
		})
		defer a.lead(1)()
		a.fail("web-0", "web-1", "web-2")
		wait(time.Hour)
		tried := slices.DeleteFunc(a.sent(), func(r request) bool { return r.what != "PATCH pods" })
		if n := len(tried); n == 0 || n > 3 {
			t.Errorf("%d attempts to write conditions, want at most one for each pod", n)
		}
	})
}
