package restartbudget

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// world is a cluster with random events. It has what the API server and the agents know about grants.
type world struct {
	r   *rand.Rand
	now time.Time // time on the leader's clock
	in  Input
	*judge

	state *State
	// twin gets the same input as state, but the requests in another order. It may be nil.
	twin *State
	// forgets makes the leader forget its grants before each decision, so that it is broken: its grants do not count
	// against budgets.
	forgets bool

	failing map[ContainerKey]time.Time // when each failure began
	stored  map[GrantID]Grant          // grants in the API
	open    []GrantID                  // open grants that agents have
	uids    int
}

func newWorld(seed uint64) *world {
	w := &world{
		r: rand.New(rand.NewPCG(seed, 28)), now: start, in: Input{Workloads: map[WorkloadID]*Workload{}}, judge: &judge{asked: map[ContainerKey]sighting{}},
		state: New(), failing: map[ContainerKey]time.Time{}, stored: map[GrantID]Grant{},
	}
	if seed%4 == 0 {
		w.twin = New()
	}
	for i := range 1 + w.r.IntN(6) {
		id, replicas := deployment(fmt.Sprint("w", i)), 1+w.r.IntN(6)
		if w.r.IntN(6) == 0 {
			id.Kind, replicas = "Pod", 1
		}
		id.Namespace = fmt.Sprint("ns", w.r.IntN(3))
		w.in.Workloads[id] = &Workload{Replicas: replicas, Pods: map[string]*Pod{}}
		for range replicas {
			w.addPod(w.in.Workloads[id], true)
		}
		w.setBudget(id)
	}
	w.setSettings()
	return w
}

func (w *world) addPod(of *Workload, ready bool) {
	w.uids++
	pod := &Pod{Name: fmt.Sprint("p", w.uids), Node: fmt.Sprint("n", w.r.IntN(3)), Template: "t1", Ready: ready, Containers: []Container{{Name: "app"}}}
	if w.r.IntN(3) == 0 {
		pod.Containers = append(pod.Containers, Container{Name: "sidecar"})
	}
	of.Pods[pod.Name] = pod
}

func (w *world) setBudget(id WorkloadID) {
	of := w.in.Workloads[id]
	of.Budgets, of.Disruption = nil, nil
	limit := Limit{Name: id.Name, MaxUnavailable: pods(w.r.IntN(4))}
	switch w.r.IntN(4) {
	case 0:
	case 1:
		of.Disruption = []Limit{limit}
	case 2:
		of.Budgets = []Budget{{Limit: limit}}
	case 3:
		of.Budgets = []Budget{{Limit: limit, PerMinute: w.r.IntN(3)}, {Limit: Limit{Name: id.Namespace + "/all"}, PerMinute: w.r.IntN(4)}}
	}
}

func (w *world) setSettings() {
	modes := []Mode{Enforce, Enforce, Enforce, Enforce, DryRun, Off}
	w.in.Settings = Settings{Mode: modes[w.r.IntN(len(modes))], PerMinute: w.r.IntN(6), PerNodePerMinute: w.r.IntN(4)}
	if w.r.IntN(2) == 0 {
		w.in.Settings.Breaker = BreakerLimits{1 + w.r.IntN(3), 1 + w.r.IntN(100)}
	}
}

// workload returns a random workload.
func (w *world) workload() (WorkloadID, *Workload) {
	ids := slices.SortedFunc(maps.Keys(w.in.Workloads), compareWorkloads)
	id := ids[w.r.IntN(len(ids))]
	return id, w.in.Workloads[id]
}

// somePod returns a random pod of a random workload, nil if it has none.
func (w *world) somePod() (WorkloadID, *Pod) {
	id, of := w.workload()
	if len(of.Pods) == 0 {
		return id, nil
	}
	names := slices.Sorted(maps.Keys(of.Pods))
	return id, of.Pods[names[w.r.IntN(len(names))]]
}

// happen simulates one random event.
func (w *world) happen() {
	id, pod := w.somePod()
	of := w.in.Workloads[id]
	switch n := w.r.IntN(24); {
	case n < 5:
		w.burst(of)
	case n < 8:
		w.restartGranted()
	case n < 10:
		w.refund()
	case n == 10:
		w.setBudget(id)
	case n == 11:
		w.setSettings()
	case n == 12:
		w.lead()
	case n == 13:
		of.Replicas = 1 + w.r.IntN(6)
	case n == 14:
		w.addPod(of, w.r.IntN(2) == 0)
	case n == 15:
		w.releaseOne(id)
	case pod != nil:
		w.happenTo(pod, of, n)
	}
}

func (w *world) happenTo(pod *Pod, of *Workload, n int) {
	switch n {
	case 16, 17, 18:
		w.setReady(pod, true)
	case 19:
		w.setReady(pod, false)
	case 20:
		delete(of.Pods, pod.Name)
		w.gone(pod.Name)
	case 21:
		pod.Terminating = true
	case 22:
		pod.Suspended = !pod.Suspended
	case 23:
		w.restart(pod, &pod.Containers[0])
	}
}

// burst makes containers of a workload fail, or also makes all its pods unready.
func (w *world) burst(of *Workload) {
	share, unready := 1+w.r.IntN(4), w.r.IntN(3) == 0
	for _, name := range slices.Sorted(maps.Keys(of.Pods)) {
		pod := of.Pods[name]
		for _, c := range pod.Containers {
			key := ContainerKey{name, c.Name}
			if _, fails := w.failing[key]; !fails && w.r.IntN(share) == 0 {
				w.failing[key] = w.now
			}
		}
		if unready {
			w.setReady(pod, false)
		}
	}
}

func (w *world) setReady(pod *Pod, ready bool) {
	pod.Ready = ready
	if ready {
		w.ready(pod.Name)
	}
}

// restart restarts a container, which may help.
func (w *world) restart(pod *Pod, c *Container) {
	key := ContainerKey{pod.Name, c.Name}
	c.Restarts++
	pod.Ready = false
	w.restarted(key)
	delete(w.failing, key)
	switch w.r.IntN(3) {
	case 0:
		w.failing[key] = w.now // it fails again
	case 1:
		c.Passed = c.Restarts
	}
}

// takeOpen returns a random open grant, and removes it; false without any.
func (w *world) takeOpen() (GrantID, *Pod, bool) {
	if len(w.open) == 0 {
		return GrantID{}, nil, false
	}
	i := w.r.IntN(len(w.open))
	id := w.open[i]
	w.open = slices.Delete(w.open, i, i+1)
	of := w.in.Workloads[w.stored[id].Workload]
	pod := of.Pods[id.PodUID]
	return id, pod, pod != nil && pod.find(id.Name).Restarts == id.Restarts
}

func (w *world) restartGranted() {
	if id, pod, ok := w.takeOpen(); ok {
		w.restart(pod, pod.find(id.Name))
	}
}

// refund ends a grant that was not used, usually because the check passes.
func (w *world) refund() {
	id, pod, ok := w.takeOpen()
	if !ok {
		return
	}
	if w.r.IntN(3) > 0 {
		delete(w.failing, id.ContainerKey)
		c := pod.find(id.Name)
		c.Passed = c.Restarts
	}
	w.ended(id)
	if g, ok := w.state.Refund(w.now, id); ok {
		w.stored[id] = g
	}
	if w.twin != nil {
		w.twin.Refund(w.now, id)
	}
}

// lead makes another replica lead, whose clock may differ by an hour.
func (w *world) lead() {
	offset := time.Duration(w.r.IntN(3)-1) * time.Hour * time.Duration(w.r.IntN(2))
	w.now = w.now.Add(offset)
	for key, since := range w.failing {
		w.failing[key] = since.Add(offset)
	}
	w.shift(offset)
	w.began = w.now
	w.state = Restore(w.now, slices.Collect(maps.Values(w.stored)))
	if w.twin != nil {
		w.twin = Restore(w.now, slices.Collect(maps.Values(w.stored)))
	}
}

func (w *world) releaseOne(id WorkloadID) {
	w.state.Release(id)
	if w.twin != nil {
		w.twin.Release(id)
	}
}

// requests returns the requests of most failing containers.
func (w *world) requests() []Request {
	var all []Request
	w.in.Guarded = 0
	for id, of := range w.in.Workloads {
		for uid, pod := range of.Pods {
			w.in.Guarded += len(pod.Containers)
			for _, c := range pod.Containers {
				if since, fails := w.failing[ContainerKey{uid, c.Name}]; fails {
					all = append(all, Request{ContainerKey{uid, c.Name}, id, c.Restarts, since})
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b Request) int { return compareContainers(a.ContainerKey, b.ContainerKey) })
	all = slices.DeleteFunc(all, func(Request) bool { return w.r.IntN(6) == 0 }) // not repeated yet
	w.r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}
