package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/partition"
	"github.com/sonde-mesh/sonde/watchdog/config"
	"github.com/sonde-mesh/sonde/watchdog/leases"
	"github.com/sonde-mesh/sonde/watchdog/probe"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// renewEvery is how often kubelets renew leases.
const renewEvery = 10 * time.Second

// node is a node of the cluster.
type node struct {
	zone    string
	skew    time.Duration // error of its clock
	cut     bool          // disconnected from the API server
	next    time.Time     // time of the next renewal
	renewed time.Time     // last renewal by the true clock; zero without a lease
	written time.Time     // last renewal by its own clock
	deleted bool          // a lease without a node
	going   bool          // an autoscaler is about to delete it
}

// world is a watched cluster, and the cluster with its WatchedCluster and dependants. Its clock is the bubble's.
type world struct {
	mu      sync.Mutex
	nodes   map[string]*node
	apiErr  map[string]error // by request: open, version, nodes, going, leases
	status  v1alpha1.WatchedClusterStatus
	objects map[string]*scale.Object
	version int

	probes     []time.Time
	actions    []string
	lowered    func(name string) // is called when replicas become 0, readLeases when leases are read; both with mu held
	readLeases func()
	told       []string // reasons of events
}

func newWorld(nodes int) *world {
	w := &world{nodes: map[string]*node{}, apiErr: map[string]error{}, objects: map[string]*scale.Object{}}
	for i := range nodes {
		w.add(fmt.Sprint("n", i), time.Duration(i)*time.Second)
	}
	for name, n := range map[string]int32{"kcm": 2, "mcm": 1, "ca": 1} {
		w.objects[name] = &scale.Object{Version: "0", Replicas: n, Running: n, Annotations: map[string]string{}}
	}
	return w
}

// add adds a node whose first renewal is after a time.
func (w *world) add(name string, phase time.Duration) *node {
	now := time.Now()
	n := &node{next: now.Add(phase), renewed: now.Add(-time.Second), written: now.Add(-time.Second)}
	w.nodes[name] = n
	return n
}

// advance performs the kubelets' renewals until now. Call it before any change that affects them.
func (w *world) advance() {
	now := time.Now()
	for _, n := range w.nodes {
		for !n.next.After(now) {
			if !n.cut && w.apiErr["version"] == nil {
				n.renewed, n.written = n.next, n.next.Add(n.skew)
			}
			n.next = n.next.Add(renewEvery)
		}
	}
}

// change changes the world.
func (w *world) change(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.advance()
	do()
}

// cut disconnects or connects nodes.
func (w *world) cut(cut bool, names ...string) {
	w.change(func() {
		for name, n := range w.nodes {
			if len(names) == 0 || slices.Contains(names, name) {
				n.cut = cut
			}
		}
	})
}

// source is a probe of the world.
type source struct{ *world }

func (w *world) open(context.Context) (Source, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.probes = append(w.probes, time.Now())
	return source{w}, w.apiErr["open"]
}

// ask returns the error of a request.
func (s source) ask(what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance()
	return s.apiErr[what]
}

func (s source) APIServer(context.Context) error { return s.ask("version") }

func (source) Close() {}

func (s source) Nodes(context.Context) (map[string]string, error) {
	if err := s.ask("nodes"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	zones := map[string]string{}
	for name, n := range s.nodes {
		if !n.deleted {
			zones[name] = n.zone
		}
	}
	return zones, nil
}

func (s source) Going(context.Context) ([]string, error) {
	if err := s.ask("going"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var going []string
	for name, n := range s.nodes {
		if n.going {
			going = append(going, name)
		}
	}
	return going, nil
}

func (s source) Leases(context.Context) (time.Time, []leases.Lease, error) {
	if err := s.ask("leases"); err != nil {
		return time.Time{}, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.readLeases != nil {
		s.readLeases()
	}
	var all []leases.Lease
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		all = append(all, leases.Lease{Node: name, Renewed: s.nodes[name].written})
	}
	return time.Now(), all, nil
}

// client is a leader's client for the WatchedCluster and the dependants.
type client struct {
	*world
	cut *bool // disconnected
}

var errCut = errors.New("connection refused")

func (c client) Read(context.Context) (v1alpha1.WatchedClusterStatus, string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *c.cut {
		return v1alpha1.WatchedClusterStatus{}, "", errCut
	}
	return *c.status.DeepCopy(), "s" + strconv.Itoa(c.version), nil
}

func (c client) Write(_ context.Context, s v1alpha1.WatchedClusterStatus, version string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case *c.cut:
		return "", errCut
	case version != "s"+strconv.Itoa(c.version):
		return "", ErrConflict
	}
	c.version++
	c.status = *s.DeepCopy()
	return "s" + strconv.Itoa(c.version), nil
}

func (c client) Get(_ context.Context, ref v1alpha1.DependantRef) (scale.Object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *c.cut {
		return scale.Object{}, errCut
	}
	o := *c.objects[ref.Name]
	o.Annotations = maps.Clone(o.Annotations)
	return o, nil
}

func (c client) set(ref v1alpha1.DependantRef, version string, do func(*scale.Object)) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.objects[ref.Name]
	switch {
	case *c.cut:
		return "", errCut
	case o.Version != version:
		return "", scale.ErrConflict
	}
	c.touch(o, do)
	return o.Version, nil
}

// touch changes a dependant.
func (w *world) touch(o *scale.Object, do func(*scale.Object)) {
	do(o)
	n, _ := strconv.Atoi(o.Version)
	o.Version, o.Running = strconv.Itoa(n+1), o.Replicas
}

func (c client) Annotate(_ context.Context, ref v1alpha1.DependantRef, version string, annotations map[string]*string) (string, error) {
	return c.set(ref, version, func(o *scale.Object) {
		for key, value := range annotations {
			if value == nil {
				delete(o.Annotations, key)
			} else {
				o.Annotations[key] = *value
			}
		}
	})
}

func (c client) SetReplicas(_ context.Context, ref v1alpha1.DependantRef, version string, replicas int32) (string, error) {
	return c.set(ref, version, func(o *scale.Object) {
		o.Replicas = replicas
		if replicas == 0 && c.lowered != nil {
			c.advance()
			c.lowered(ref.Name)
		}
	})
}

// lead starts a leader, and returns functions that disconnect it from its API server and stop it.
func (w *world) lead(ctx context.Context, epoch int64, change ...func(*Options)) (c *Cluster, cut, stop func()) {
	off := new(bool)
	cl := client{w, off}
	o := Options{
		Open: w.open, Statuses: cl, Epoch: epoch, Objects: cl, Probed: func(time.Duration) {}, Logger: slog.New(slog.DiscardHandler),
		Acted: func(a scale.Action) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.actions = append(w.actions, fmt.Sprintf("%s %s: %s", a.Direction, a.Ref.Name, a.Result))
		},
		Event: func(e Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.told = append(w.told, e.Reason)
		},
	}
	for _, ch := range change {
		ch(&o)
	}
	c = New(o, conf(), metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted})
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	cut = func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		*off = true
	}
	return c, cut, func() {
		cancel()
		running.Wait()
	}
}

// conf is the Dependency Watchdog's example configuration, without an initial delay.
func conf() *config.Cluster {
	dependant := func(name string, up, down int32) config.Dependant {
		return config.Dependant{
			Ref: v1alpha1.DependantRef{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			Up:  config.Scaling{Level: up, Timeout: config.DefaultScaleTimeout}, Down: config.Scaling{Level: down, Timeout: config.DefaultScaleTimeout},
		}
	}
	c := &config.Cluster{
		Probe:      config.Probe{Interval: config.DefaultProbeInterval, Jitter: config.DefaultJitter, Timeout: config.DefaultProbeTimeout, Throttled: config.DefaultThrottled},
		Judge:      partition.Settings{Silence: 30 * time.Second, Enter: partition.DefaultEnter, Leave: partition.LeaveFor(partition.DefaultEnter), Calm: partition.DefaultCalm, Quiet: 30 * time.Second},
		Dependants: []config.Dependant{dependant("kcm", 0, 1), dependant("mcm", 1, 0), dependant("ca", 2, 0)},
	}
	c.Dependants[1].Up.Delay = 30 * time.Second
	return c
}

// replicas returns the replicas of all dependants, as in "ca 1, kcm 2, mcm 1".
func (w *world) replicas() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("ca %d, kcm %d, mcm %d", w.objects["ca"].Replicas, w.objects["kcm"].Replicas, w.objects["mcm"].Replicas)
}

// left returns remaining annotations and steps after scaling.
func (w *world) left() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, o := range w.objects {
		if len(o.Annotations) > 0 {
			return fmt.Errorf("%s has annotations %q", name, o.Annotations)
		}
	}
	if len(w.status.Steps) > 0 || w.status.LostSince != nil {
		return fmt.Errorf("the status is %+v", w.status)
	}
	return nil
}

const (
	up   = "ca 1, kcm 2, mcm 1"
	down = "ca 0, kcm 0, mcm 0"
)

// fails is an error of a request.
func fails(cause partition.Cause, after time.Duration) error {
	return &probe.Error{Cause: cause, RetryAfter: after, Err: errors.New("it fails")}
}

func after(d time.Duration) { <-time.After(d) }
