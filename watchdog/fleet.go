package watchdog

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/watchdog/cluster"
	"github.com/sonde-mesh/sonde/watchdog/config"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

// resource is the plural name of the WatchedCluster resource.
const resource = "watchedclusters"

// record is the part of a WatchedCluster that the watchdog stores. It omits the status, which the cluster's own ledger
// reads.
type record struct {
	uid        types.UID
	generation int64
	owner      types.UID // UID of the owning Gardener Cluster, "" without one
	spec       v1alpha1.WatchedClusterSpec
	beyond     bool // its namespace exceeds the limit
}

// maxClusters limits the watched clusters per namespace, for the chart's memory limit.
const maxClusters = 1000

var errTooMany = fmt.Errorf("only the %d oldest WatchedClusters of a namespace are watched", maxClusters)

// clusterShare counts objects instead of bytes, since probing a cluster needs far more memory than its object.
func clusterShare() watch.Share[record] {
	return watch.Share[record]{Bytes: maxClusters, Takes: func(*record) int { return 1 }, Beyond: func(r *record) record {
		return record{uid: r.uid, generation: r.generation, owner: r.owner, beyond: true}
	}}
}

// readRecord returns false for an object that is being deleted, which ends its probes.
func readRecord(o *v1alpha1.WatchedCluster) (record, bool) {
	return record{uid: o.UID, generation: o.Generation, owner: shootOf(o), spec: *o.Spec.DeepCopy()},
		o.DeletionTimestamp == nil
}

// member is a watched cluster, an object that was rejected, or an object whose shoot is not watched.
type member struct {
	uid        types.UID
	generation int64
	halt       halt             // reason why it is not watched
	beyond     bool             // its namespace exceeds the limit
	cluster    *cluster.Cluster // nil if the object is rejected or not watched
	secret     string           // Secret used to reach it
	end        context.CancelFunc
}

// fleet holds the clusters that a leader watches.
type fleet struct {
	w                *Watchdog
	synced           run.Signal // a store has synced
	clusters, shoots loop
	shootsFailed     rate.Sometimes // limits how often the limit is logged

	mu      sync.Mutex // guards the following fields
	members map[watch.Key]*member
	applied map[watch.Key]appliedShoot // objects that this leader has applied for shoots
}

func newFleet(w *Watchdog) *fleet {
	f := &fleet{
		w: w, synced: run.NewSignal(), clusters: loop{name: "clusters", keys: w.clusters.Keys, logger: w.o.Logger},
		shootsFailed: rate.Sometimes{Interval: retryEvery}, members: map[watch.Key]*member{},
		applied: map[watch.Key]appliedShoot{},
	}
	if w.shoots != nil {
		f.shoots = loop{name: "shoots", keys: w.shoots.Keys, logger: w.o.Logger}
	}
	return f
}

// lead watches all clusters until ctx ends, waits for them to stop, and returns nil.
func (f *fleet) lead(ctx context.Context, epoch int64) error {
	for f.w.missing() != nil {
		select {
		case <-ctx.Done():
			return nil
		case <-f.synced:
		}
	}
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		clear(f.members)
		clear(f.applied)
	}()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return f.clusters.run(ctx, func(ctx context.Context, key watch.Key) time.Duration {
			return f.follow(ctx, epoch, key, group)
		})
	})
	switch {
	case f.w.shoots != nil:
		group.Go(func() error { return f.shoots.run(ctx, f.applyShoot) })
	case f.w.file != nil:
		group.Go(func() error { // once per leader: an operator may change it afterwards
			for !f.w.applyFile(ctx) && run.Sleep(ctx, retryEvery) == nil {
			}
			return nil
		})
	}
	return group.Wait()
}

// end stops watching the cluster of a deleted object.
func (f *fleet) end(ctx context.Context, key watch.Key, m *member) {
	f.mu.Lock()
	delete(f.members, key)
	f.mu.Unlock()
	m.end()
	f.w.o.Logger.InfoContext(ctx, "WatchedCluster deleted, stopped watching; scaled-down dependants stay down",
		"namespace", key.Namespace, "cluster", key.Name)
}

// follow makes the watched cluster match its object, and returns the retry delay, 0 for none. It does not probe, since
// a probe may take long and must end once the object changes.
func (f *fleet) follow(ctx context.Context, epoch int64, key watch.Key, running *errgroup.Group) time.Duration {
	m, r := f.get(key), f.w.clusters.Get(key)
	if m != nil && (r == nil || r.uid != m.uid) {
		f.end(ctx, key, m)
		m = nil
	}
	if r == nil {
		return 0
	}
	why := f.haltOf(key, r)
	if m != nil && m.generation == r.generation && m.halt == why && m.beyond == r.beyond {
		return 0
	}
	var err error
	if why != (halt{}) {
		err = f.halt(ctx, epoch, key, r, m, why)
	} else {
		err = f.watch(ctx, epoch, key, r, m, running)
	}
	if err != nil {
		f.w.o.Logger.WarnContext(ctx, "failed to write status, retrying", "namespace", key.Namespace, "cluster", key.Name,
			"err", err)
		return retryEvery
	}
	return 0
}

// watch starts watching a cluster, or reconfigures a running one. The error is from writing the status of a rejected
// object.
func (f *fleet) watch(
	ctx context.Context, epoch int64, key watch.Key, r *record, m *member, running *errgroup.Group,
) error {
	conf, err := config.Of(&r.spec, key.Namespace, f.w.self())
	if r.beyond {
		conf, err = nil, errTooMany
	}
	accepted := acceptedOf(r.generation, err)
	// another Secret means another cluster
	if m != nil && m.cluster != nil && (conf == nil || conf.Secret == m.secret) {
		m.cluster.Configure(conf, accepted)
		f.put(key, &member{uid: r.uid, generation: r.generation, beyond: r.beyond, cluster: m.cluster, secret: m.secret,
			end: m.end})
		return nil
	}
	if m != nil {
		m.end()
	}
	if err != nil {
		f.w.o.Logger.WarnContext(ctx, "invalid WatchedCluster, not watching it",
			"namespace", key.Namespace, "cluster", key.Name, "err", err)
		if err := cluster.Refuse(ctx, f.w.statuses(key), epoch, accepted); err != nil {
			return err
		}
		f.put(key, &member{uid: r.uid, generation: r.generation, beyond: r.beyond, end: func() {}})
		return nil
	}
	ctx, end := context.WithCancel(ctx)
	done := make(chan struct{})
	c := cluster.New(f.options(key, r, epoch, conf), conf, accepted)
	f.put(key, &member{uid: r.uid, generation: r.generation, cluster: c, secret: conf.Secret, end: func() {
		end()
		<-done
	}})
	running.Go(func() error {
		defer close(done)
		defer end()
		f.w.o.Logger.InfoContext(ctx, "watching cluster", "namespace", key.Namespace, "cluster", key.Name)
		c.Run(ctx)
		return nil
	})
	return nil
}

// options returns the options for a cluster.
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

// acceptedOf returns the Accepted condition of an object.
func acceptedOf(generation int64, err error) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted,
		Message:            "the spec is valid and in use",
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

// all returns the current members.
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
