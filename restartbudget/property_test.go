package restartbudget

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
)

// decide makes the leader decide, checks the result, and passes it to the API and the agents.
func (w *world) decide() error {
	if w.forgets {
		w.state.last, w.state.recent = map[ContainerKey]*record{}, nil
	}
	w.in.Requests = w.requests()
	r := w.state.Decide(w.now, w.in)
	if w.twin != nil {
		twin := w.in
		twin.Requests = slices.Clone(w.in.Requests)
		w.r.Shuffle(len(twin.Requests), func(i, j int) { twin.Requests[i], twin.Requests[j] = twin.Requests[j], twin.Requests[i] })
		if other := w.twin.Decide(w.now, twin); !reflect.DeepEqual(r, other) {
			return fmt.Errorf("the same input gives\n%+v\nand\n%+v", r, other)
		}
	}
	if err := w.check(w.now, w.in, r); err != nil {
		return err
	}
	for _, g := range r.Changed {
		w.stored[g.ID] = g
	}
	for _, d := range r.Decisions {
		if d.Reason == ReasonGranted {
			w.stored[d.Grant.ID] = *d.Grant
			w.open = append(w.open, d.Grant.ID)
		}
	}
	return nil
}

// play simulates random events, and then a recovery, after which each failing container must restart.
func (w *world) play() error {
	for step := range 25 {
		w.now = w.now.Add(time.Duration(w.r.IntN(30_000)) * time.Millisecond)
		for range 1 + w.r.IntN(3) {
			w.happen()
		}
		if err := w.decide(); err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
	}
	w.calm()
	for range 200 {
		w.now = w.now.Add(20 * time.Second)
		w.release() // a restart that is seen only now may have happened before
		w.settle()
		if len(w.failing) == 0 {
			return nil
		}
		if err := w.decide(); err != nil {
			return fmt.Errorf("when all is well again: %w", err)
		}
	}
	return fmt.Errorf("%d containers are never restarted, such as %v", len(w.failing), w.failing)
}

// calm ends everything that may prevent a restart forever.
func (w *world) calm() {
	w.in.Settings = Settings{PerMinute: w.in.Settings.PerMinute, PerNodePerMinute: w.in.Settings.PerNodePerMinute, Breaker: BreakerLimits{Workloads: 100}}
	for id, of := range w.in.Workloads {
		if budgetOf(id, of) == 0 {
			of.Budgets, of.Disruption = nil, nil
		}
		for uid, pod := range of.Pods {
			pod.Suspended = false
			if pod.Terminating {
				delete(of.Pods, uid)
				w.gone(uid)
			}
		}
		for len(of.Pods) < of.Replicas {
			w.addPod(of, true)
		}
		of.Replicas = len(of.Pods)
	}
}

// release allows restarts again for all workloads.
func (w *world) release() {
	for id := range w.in.Workloads {
		w.releaseOne(id)
	}
}

// settle restarts the containers that may restart, successfully, and makes pods Ready that have no failing container.
func (w *world) settle() {
	for len(w.open) > 0 {
		id, pod, ok := w.takeOpen()
		if !ok {
			continue
		}
		c := pod.find(id.Name)
		w.restart(pod, c)
		c.Passed = c.Restarts
		delete(w.failing, id.ContainerKey)
	}
	fails := map[string]bool{}
	for key := range w.failing {
		fails[key.PodUID] = true
	}
	existing := map[string]bool{}
	for _, of := range w.in.Workloads {
		for uid, pod := range of.Pods {
			existing[uid] = true
			if !fails[uid] {
				w.setReady(pod, true)
			}
		}
	}
	for key := range w.failing {
		if !existing[key.PodUID] {
			delete(w.failing, key)
		}
	}
}

func TestRandomSchedules(t *testing.T) {
	const parts = 4
	for part := range uint64(parts) {
		t.Run(strconv.FormatUint(part, 10), func(t *testing.T) {
			t.Parallel()
			for i := range uint64(slowtest.Rounds(10_000, 1_000) / parts) {
				seed := i*parts + part
				if err := newWorld(seed).play(); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		})
	}
}

// TestRandomSchedulesFindBrokenLeaders shows that the schedules fail if a leader forgets which restarts it has granted.
func TestRandomSchedulesFindBrokenLeaders(t *testing.T) {
	missing := []string{"in progress", "are unavailable", "two containers of a pod", "within a minute", "second one of its name"}
	for seed := uint64(0); len(missing) > 0; seed++ {
		if seed == 5_000 {
			t.Fatalf("no schedule finds %q", missing)
		}
		w := newWorld(seed)
		w.twin, w.forgets = nil, true
		err := w.play()
		missing = slices.DeleteFunc(missing, func(rule string) bool { return err != nil && strings.Contains(err.Error(), rule) })
	}
}
