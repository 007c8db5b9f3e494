package watchdog

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/watchdog/cluster"
	"github.com/sonde-mesh/sonde/watchdog/gardener"
)

// followShoots creates the store for Gardener's Clusters.
func (w *Watchdog) followShoots(config *rest.Config) error {
	watching, err := newClient(config, gardener.GroupVersion, gardener.AddToScheme, 0) // no timeout: a watch has no end
	if err != nil {
		return err
	}
	w.shoots = watch.New(watch.Kind[*gardener.Cluster, gardener.Record]{
		Client: watching, Resource: gardener.Resource, New: &gardener.Cluster{}, Record: gardener.RecordOf,
		Changed: func(shoot watch.Key, _, _ *gardener.Record) { w.fleet.shootChanged(shoot) },
		Synced:  func() { w.fleet.synced.Set() },
	})
	return nil
}

// missing returns why a store has not synced, nil once it has.
func (w *Watchdog) missing() error {
	if err := w.clusters.Missing(); err != nil || w.shoots == nil {
		return err
	}
	return w.shoots.Missing()
}

// lost returns when a store lost its watch, zero while all are connected.
func (w *Watchdog) lost() watch.Loss {
	if w.shoots == nil {
		return w.clusters.Lost()
	}
	return watch.First(w.clusters.Lost(), w.shoots.Lost())
}

// shootOf returns the UID of the Gardener Cluster that owns an object, "" without one.
func shootOf(o *v1alpha1.WatchedCluster) types.UID {
	for _, owner := range o.OwnerReferences {
		if version, err := schema.ParseGroupVersion(owner.APIVersion); err == nil &&
			version.Group == gardener.GroupVersion.Group && owner.Kind == gardener.Kind {
			return owner.UID
		}
	}
	return ""
}

// halt is the reason why a shoot is not watched. The zero value means that it is watched.
type halt struct {
	why    gardener.Halt
	detail string
}

func (h halt) message() string {
	if h.detail != "" {
		return "not probed: " + h.why.Text() + ": " + h.detail
	}
	return "not probed: " + h.why.Text()
}

// haltOf returns why an object is not watched. An owner reference is enough to mark a shoot: a watchdog that does not
// watch Clusters must not treat a hibernated shoot as lost.
func (f *fleet) haltOf(key watch.Key, r *record) halt {
	switch {
	case r.owner == "":
		return halt{}
	case f.w.shoots == nil:
		return halt{why: gardener.Unfollowed}
	}
	shoot := f.w.shoots.Get(watch.Key{Name: key.Namespace})
	if shoot == nil || shoot.UID != r.owner {
		return halt{why: gardener.Deleted}
	}
	return halt{why: shoot.Halt, detail: shoot.Detail}
}

// shootChanged handles a changed shoot.
func (f *fleet) shootChanged(shoot watch.Key) {
	f.shoots.changed(shoot)
	for _, key := range f.w.clusters.Keys() {
		if key.Namespace == shoot.Name {
			f.clusters.changed(key)
		}
	}
}

// halt stops probing an object's cluster, and writes the reason to its status.
func (f *fleet) halt(ctx context.Context, epoch int64, key watch.Key, r *record, m *member, why halt) error {
	if m != nil {
		m.end()
		f.put(key, &member{uid: r.uid, end: func() {}}) // without a generation, since the status is not written yet
	}
	if m != nil && m.cluster != nil {
		f.w.o.Logger.InfoContext(ctx, "cluster no longer watched, scaled-down dependants stay down",
			"namespace", key.Namespace, "cluster", key.Name, "why", why.message())
		f.w.events.Record(eventOf(key, r.uid, cluster.Event{Reason: "ProbesEnded", Action: "Probe", Note: why.message(),
			Normal: true}))
	}
	if err := cluster.Halt(ctx, f.w.statuses(key), epoch, acceptedOf(r.generation, nil), string(why.why),
		why.message()); err != nil {
		return err
	}
	f.put(key, &member{uid: r.uid, generation: r.generation, halt: why, end: func() {}})
	return nil
}

// eventOf creates an event about an object.
func eventOf(key watch.Key, uid types.UID, e cluster.Event) events.Event {
	return events.Event{
		Kind: "WatchedCluster", APIVersion: v1alpha1.GroupVersion.String(), Namespace: key.Namespace, Name: key.Name,
		UID:       uid,
		FieldPath: e.FieldPath, Reason: e.Reason, Action: e.Action, Note: e.Note, Normal: e.Normal,
	}
}

// appliedShoot is the object that was applied for a shoot.
type appliedShoot struct {
	spec *v1alpha1.WatchedClusterSpec
	at   time.Time
}

// applyShoot creates the WatchedCluster of a shoot, owned by its Cluster, and returns the delay before the next check,
// 0 for none. While the shoot is not watched, it keeps an existing WatchedCluster. It applies the spec again only after
// a change of leader or spec, since an operator may edit the object in between.
func (f *fleet) applyShoot(ctx context.Context, name watch.Key) time.Duration {
	shoot := f.w.shoots.Get(name)
	if shoot == nil || shoot.Halt != "" {
		return 0
	}
	key, spec := watch.Key{Namespace: name.Name, Name: f.w.o.FileCluster}, f.specOf(shoot)
	f.mu.Lock()
	last := f.applied[key]
	f.mu.Unlock()
	same := last.spec != nil && equality.Semantic.DeepEqual(last.spec, spec)
	if r := f.w.clusters.Get(key); r == nil || r.owner != shoot.UID {
		if since := time.Since(last.at); same && since < retryEvery { // the watch may not have received the write yet
			return retryEvery - since
		}
	} else if same || isAsWritten(r, spec) {
		return 0
	}
	owner := metav1.OwnerReference{APIVersion: gardener.GroupVersion.String(), Kind: gardener.Kind, Name: name.Name,
		UID: shoot.UID}
	if err := f.w.apply(ctx, key, []metav1.OwnerReference{owner}, spec); err != nil {
		if ctx.Err() == nil {
			f.shootsFailed.Do(func() { // if the API server is unreachable, the writes for all shoots fail
				f.w.o.Logger.WarnContext(ctx, "failed to write WatchedClusters of shoots, retrying",
					"namespace", key.Namespace, "err", err)
			})
		}
		return retryEvery
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applied[key] = appliedShoot{spec: spec, at: time.Now()}
	return retryEvery
}

// specOf returns the spec of a shoot's WatchedCluster: the file's spec with the shoot's own settings.
func (f *fleet) specOf(shoot *gardener.Record) *v1alpha1.WatchedClusterSpec {
	spec := f.w.file.DeepCopy()
	if shoot.MonitorGrace > 0 {
		spec.Settings.KCMNodeMonitorGraceDuration = &metav1.Duration{Duration: shoot.MonitorGrace}
	}
	return spec
}

// isAsWritten reports whether applying an object would not change it. It ignores fields of operators.
func isAsWritten(r *record, spec *v1alpha1.WatchedClusterSpec) bool {
	is := r.spec.DeepCopy()
	is.Paused = spec.Paused
	return equality.Semantic.DeepEqual(is, spec)
}
