package watchdog

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/watchdog/cluster"
	"github.com/sonde-mesh/sonde/watchdog/config"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

// resource is the plural name of WatchedClusters.
const resource = "watchedclusters"

// lookEvery is how often the fleet is compared with the objects, changes or not: a status that could not be written is written then.
const lookEvery = 10 * time.Second

// record is what is kept of a WatchedCluster. Its status is read by the cluster that is watched.
type record struct {
	uid        types.UID
	generation int64
	owner      types.UID // of Gardener's Cluster that it is about, "" for none
	spec       v1alpha1.WatchedClusterSpec
}

// readRecord returns false for an object that is being deleted: it is watched no more.
func readRecord(o *v1alpha1.WatchedCluster) (record, bool) {
	return record{uid: o.UID, generation: o.Generation, owner: shootOf(o), spec: *o.Spec.DeepCopy()}, o.DeletionTimestamp == nil
}

// member is a cluster that is watched, or an object that is refused, or about a shoot that is not to be watched.
type member struct {
	uid        types.UID
	generation int64
	halt       halt             // why it is not watched
	cluster    *cluster.Cluster // nil for one that is refused, or not watched
	secret     string           // by which it is reached
	end        context.CancelFunc
}

// fleet is what a leader watches.
type fleet struct {
	w    *Watchdog
	loop *heartbeat.Loop
	wake chan struct{} // objects have changed

	// Only lead uses these: the epoch of the leader that has written the object of the file, and what this one has written of shoots.
	written int64
	applied map[watch.Key]appliedShoot

	mu      sync.Mutex
	members map[watch.Key]*member
}

func newFleet(w *Watchdog, loop *heartbeat.Loop) *fleet {
	return &fleet{w: w, loop: loop, wake: make(chan struct{}, 1), members: map[watch.Key]*member{}}
}

func (f *fleet) changed() {
	select {
	case f.wake <- struct{}{}:
	default: // it was not taken since the last time
	}
}

// lead watches all clusters until ctx ends, and then returns nil, once all have ended.
func (f *fleet) lead(ctx context.Context, epoch int64) error {
	var running sync.WaitGroup
	defer func() {
		running.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		clear(f.members)
	}()
	f.applied = map[watch.Key]appliedShoot{}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		f.loop.Begin()
		f.compare(ctx, epoch, &running)
		f.loop.End()
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		case <-look.C:
		}
	}
}

// compare starts and ends what is watched, as the objects say.
func (f *fleet) compare(ctx context.Context, epoch int64, running *sync.WaitGroup) {
	if f.w.missing() != nil {
		return
	}
	if f.w.file != nil && f.w.shoots == nil && f.written != epoch && f.w.applyFile(ctx) {
		f.written = epoch // once by each leader: an operator may change it then
	}
	there := map[watch.Key]*record{}
	for _, key := range f.w.clusters.Keys() {
		if r := f.w.clusters.Get(key); r != nil {
			there[key] = r
		}
	}
	for key, m := range f.all() {
		if r := there[key]; r == nil || r.uid != m.uid {
			f.end(ctx, key, m)
		}
	}
	for key, r := range there {
		f.loop.Beat() // each may wait for the API server
		f.follow(ctx, epoch, key, r, running)
	}
	if f.w.shoots != nil {
		f.applyShoots(ctx, there)
	}
}

// end ends what is watched of an object that has gone.
func (f *fleet) end(ctx context.Context, key watch.Key, m *member) {
	f.mu.Lock()
	delete(f.members, key)
	f.mu.Unlock()
	m.end()
	f.w.o.Logger.InfoContext(ctx, "cluster not watched any more: its object has gone, what is scaled down stays so", "namespace", key.Namespace, "cluster", key.Name)
}

// follow starts what an object says, or has what runs follow it.
func (f *fleet) follow(ctx context.Context, epoch int64, key watch.Key, r *record, running *sync.WaitGroup) {
	m, why := f.get(key), f.haltOf(key, r)
	if m != nil && m.generation == r.generation && m.halt == why {
		return
	}
	if why != (halt{}) {
		f.halt(ctx, epoch, key, r, m, why)
		return
	}
	conf, err := config.Of(&r.spec, key.Namespace, f.w.self())
	accepted := acceptedOf(r.generation, err)
	if m != nil && m.cluster != nil && (conf == nil || conf.Secret == m.secret) { // one that is reached in another way is another one
		m.cluster.Configure(conf, accepted)
		f.put(key, &member{uid: r.uid, generation: r.generation, cluster: m.cluster, secret: m.secret, end: m.end})
		return
	}
	if m != nil {
		m.end()
	}
	if err != nil {
		f.w.o.Logger.WarnContext(ctx, "cluster not watched: its object is not valid", "namespace", key.Namespace, "cluster", key.Name, "err", err)
		if err := cluster.Refuse(ctx, f.w.statuses(key), epoch, accepted); err != nil {
			f.w.o.Logger.WarnContext(ctx, "status not written, trying again", "namespace", key.Namespace, "cluster", key.Name, "err", err)
			return
		}
		f.put(key, &member{uid: r.uid, generation: r.generation, end: func() {}})
		return
	}
	ctx, end := context.WithCancel(ctx)
	done := make(chan struct{})
	c := cluster.New(f.options(key, r, epoch, conf), conf, accepted)
	f.put(key, &member{uid: r.uid, generation: r.generation, cluster: c, secret: conf.Secret, end: func() {
		end()
		<-done
	}})
	running.Go(func() {
		defer close(done)
		defer end()
		f.w.o.Logger.InfoContext(ctx, "cluster watched", "namespace", key.Namespace, "cluster", key.Name)
		c.Run(ctx)
	})
}

// options returns those of a cluster.
func (f *fleet) options(key watch.Key, r *record, epoch int64, conf *config.Cluster) cluster.Options {
	log := f.w.o.Logger.With("namespace", key.Namespace, "cluster", key.Name)
	event := func(e cluster.Event) { f.w.events.Record(eventOf(key, r.uid, e)) }
	t := &target{w: f.w, namespace: key.Namespace, secret: conf.Secret, event: event}
	return cluster.Options{
		Open: t.open, Statuses: f.w.statuses(key), Epoch: epoch, Objects: f.w.dependants.In(key.Namespace),
		Probed: func(took time.Duration) { f.w.metrics.duration.Observe(took.Seconds()) },
		Acted: func(a scale.Action) {
			f.w.metrics.actions.WithLabelValues(string(a.Direction), string(a.Result)).Inc()
		},
		Event: event, DryRun: f.w.o.DryRun, Logger: log,
	}
}

// acceptedOf returns the condition of an object.
func acceptedOf(generation int64, err error) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted, Message: "the cluster is watched as it is written",
		ObservedGeneration: generation,
	}
	if err != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonInvalid, err.Error()
	}
	return c
}

func (f *fleet) get(key watch.Key) *member {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.members[key]
}

func (f *fleet) put(key watch.Key, m *member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members[key] = m
}

// all returns what is watched now.
func (f *fleet) all() map[watch.Key]*member {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.members)
}

// check returns an error if the probes of a cluster have stopped.
func (f *fleet) check(now time.Time) error {
	for key, m := range f.all() {
		if m.cluster == nil {
			continue
		}
		if err := m.cluster.Check(now); err != nil {
			return fmt.Errorf("cluster %s: %w", key, err)
		}
	}
	return nil
}
