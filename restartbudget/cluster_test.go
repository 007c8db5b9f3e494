package restartbudget

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// cluster is an Input for tests, and a State. A pod's UID is its name.
type cluster struct {
	t     *testing.T
	now   time.Time
	in    Input
	state *State
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	return &cluster{t: t, now: start, in: Input{Workloads: map[WorkloadID]*Workload{}, Guarded: 1000}, state: New()}
}

func deployment(name string) WorkloadID { return WorkloadID{"Deployment", "shop", name} }

// add adds a workload with pods name-0, name-1, … on nodes n0, n1, … Each pod is Ready, and has a container app.
func (c *cluster) add(id WorkloadID, replicas int) *Workload {
	w := &Workload{Replicas: replicas, Pods: map[string]*Pod{}}
	for i := range replicas {
		name := fmt.Sprint(id.Name, "-", i)
		w.Pods[name] = &Pod{Name: name, Node: fmt.Sprint("n", i), Template: "t1", Ready: true, Containers: []Container{{Name: "app", Image: "registry:5000/shop/app:1.2"}}}
	}
	c.in.Workloads[id] = w
	return w
}

func (c *cluster) addDeployment(name string, replicas int) *Workload {
	return c.add(deployment(name), replicas)
}

func (c *cluster) pod(name string) (WorkloadID, *Pod) {
	c.t.Helper()
	for id, w := range c.in.Workloads {
		if p := w.Pods[name]; p != nil {
			return id, p
		}
	}
	c.t.Fatalf("no pod %s", name)
	return WorkloadID{}, nil
}

func (c *cluster) app(pod string) *Container {
	c.t.Helper()
	_, p := c.pod(pod)
	return &p.Containers[0]
}

// ask makes the containers app of pods request a restart from now on.
func (c *cluster) ask(pods ...string) {
	c.t.Helper()
	for _, name := range pods {
		id, p := c.pod(name)
		c.in.Requests = append(c.in.Requests, Request{
			ContainerKey: ContainerKey{name, "app"}, Workload: id, Restarts: p.Containers[0].Restarts, Since: c.now,
		})
	}
}

// pass ends the requests of pods, since their checks pass.
func (c *cluster) pass(pods ...string) {
	c.t.Helper()
	for _, name := range pods {
		app := c.app(name)
		app.Passed = app.Restarts
		c.stop(name)
	}
}

func (c *cluster) stop(pod string) {
	c.in.Requests = slices.DeleteFunc(c.in.Requests, func(r Request) bool { return r.PodUID == pod })
}

// restart restarts the containers app, so that their pods are not Ready.
func (c *cluster) restart(pods ...string) {
	c.t.Helper()
	for _, name := range pods {
		_, p := c.pod(name)
		p.Containers[0].Restarts++
		p.Ready = false
		c.stop(name)
	}
}

func (c *cluster) setReady(ready bool, pods ...string) {
	c.t.Helper()
	for _, name := range pods {
		_, p := c.pod(name)
		p.Ready = ready
	}
}

func (c *cluster) decide() Result {
	c.t.Helper()
	if err := c.in.Settings.Validate(); err != nil {
		c.t.Fatal(err)
	}
	return c.state.Decide(c.now, c.in)
}

func (c *cluster) wait(d time.Duration) { c.now = c.now.Add(d) }

// want decides, and compares the reasons of the decisions, in order, as "pod reason".
func (c *cluster) want(want ...string) Result {
	c.t.Helper()
	r := c.decide()
	var got []string
	for _, d := range r.Decisions {
		got = append(got, d.Request.PodUID+" "+string(d.Reason))
		if granted := d.Reason == ReasonGranted || d.Reason == ReasonGrantedBefore; granted != (d.Verdict == Granted) || granted != (d.Grant != nil) {
			c.t.Errorf("verdict %s with reason %s and grant %v", d.Verdict, d.Reason, d.Grant)
		}
		if d.String() == "" || d.Needs() == "" {
			c.t.Errorf("no text for %s", d.Reason)
		}
	}
	if !slices.Equal(got, want) {
		c.t.Fatalf("decisions at %s:\n got %q\nwant %q", c.now.Sub(start), got, want)
	}
	return r
}

func grantOf(t *testing.T, r Result, pod string) Grant {
	t.Helper()
	for _, d := range r.Decisions {
		if d.Request.PodUID == pod && d.Grant != nil {
			return *d.Grant
		}
	}
	t.Fatalf("no grant of %s", pod)
	return Grant{}
}

// opened returns a grant of a container that has not restarted yet.
func opened(pod, container string) Grant {
	return Grant{ID: GrantID{ContainerKey: ContainerKey{pod, container}}, Workload: deployment("web"), Node: "n0", Template: "t1", Granted: start}
}
