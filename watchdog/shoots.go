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

// followShoots makes the store of Gardener's Clusters.
func (w *Watchdog) followShoots(config *rest.Config) error {
	watching, err := newClient(config, gardener.GroupVersion, gardener.AddToScheme, 0) // a watch lasts
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

// missing returns why what says which clusters are watched has not been read, nil once it has.
func (w *Watchdog) missing() error {
	if err := w.clusters.Missing(); err != nil || w.shoots == nil {
		return err
	}
	return w.shoots.Missing()
}

// lost returns since when that is not heard, zero while it is.
func (w *Watchdog) lost() watch.Loss {
	if w.shoots == nil {
		return w.clusters.Lost()
	}
	return watch.First(w.clusters.Lost(), w.shoots.Lost())
}

// shootOf returns the UID of Gardener's Cluster that an object is about, "" if it is about none.
func shootOf(o *v1alpha1.WatchedCluster) types.UID {
	for _, owner := range o.OwnerReferences {
		if version, err := schema.ParseGroupVersion(owner.APIVersion); err == nil && version.Group == gardener.GroupVersion.Group && owner.Kind == gardener.Kind {
			return owner.UID
		}
	}
	return ""
}

// halt is why a shoot is not watched. The zero value is that it is.
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

// haltOf returns why an object is not watched. Its owner alone says that it is about a shoot: also a watchdog that does not follow these must not take
// one that is hibernated for one that is lost.
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

// shootChanged is called for a shoot that has changed.
func (f *fleet) shootChanged(shoot watch.Key) {
	f.shoots.changed(shoot)
	for _, key := range f.w.clusters.Keys() {
		if key.Namespace == shoot.Name {
			f.clusters.changed(key)
		}
	}
}

// halt ends the probes of an object's cluster, if there are any, and says why in its status.
func (f *fleet) halt(ctx context.Context, epoch int64, key watch.Key, r *record, m *member, why halt) error {
	if m != nil {
		m.end()
		f.put(key, &member{uid: r.uid, end: func() {}}) // without a generation: the status is still to be written
	}
	if m != nil && m.cluster != nil {
		f.w.o.Logger.InfoContext(ctx, "cluster not watched any more, what is scaled down stays so", "namespace", key.Namespace, "cluster", key.Name, "why", why.message())
		f.w.events.Record(eventOf(key, r.uid, cluster.Event{Reason: "ProbesEnded", Action: "Probe", Note: why.message(), Normal: true}))
	}
	if err := cluster.Halt(ctx, f.w.statuses(key), epoch, acceptedOf(r.generation, nil), string(why.why), why.message()); err != nil {
		return err
	}
	f.put(key, &member{uid: r.uid, generation: r.generation, halt: why, end: func() {}})
	return nil
}

// eventOf returns an event about an object.
func eventOf(key watch.Key, uid types.UID, e cluster.Event) events.Event {
	return events.Event{
		Kind: "WatchedCluster", APIVersion: v1alpha1.GroupVersion.String(), Namespace: key.Namespace, Name: key.Name, UID: uid,
		FieldPath: e.FieldPath, Reason: e.Reason, Action: e.Action, Note: e.Note, Normal: e.Normal,
	}
}

// appliedShoot is what was written of a shoot.
type appliedShoot struct {
	spec *v1alpha1.WatchedClusterSpec
	at   time.Time
}

// applyShoot has a shoot that is to be watched have a WatchedCluster, which its Cluster owns, and returns after what time to look again, 0 for never. One
// that is there stays while its shoot is not watched, and an operator may change it: it is written anew for another leader, or if what it should be has
// changed.
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
		if since := time.Since(last.at); same && since < retryEvery { // what was written may not have come back yet
			return retryEvery - since
		}
	} else if same || isAsWritten(r, spec) {
		return 0
	}
	owner := metav1.OwnerReference{APIVersion: gardener.GroupVersion.String(), Kind: gardener.Kind, Name: name.Name, UID: shoot.UID}
	if err := f.w.apply(ctx, key, []metav1.OwnerReference{owner}, spec); err != nil {
		if ctx.Err() == nil {
			f.shootsFailed.Do(func() { // an API server that is away refuses those of all shoots
				f.w.o.Logger.WarnContext(ctx, "WatchedClusters of shoots not written, trying again", "namespace", key.Namespace, "err", err)
			})
		}
		return retryEvery
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applied[key] = appliedShoot{spec: spec, at: time.Now()}
	return retryEvery
}

// specOf returns the spec of a shoot's WatchedCluster: what the file says, and what the shoot does.
func (f *fleet) specOf(shoot *gardener.Record) *v1alpha1.WatchedClusterSpec {
	spec := f.w.file.DeepCopy()
	if shoot.MonitorGrace > 0 {
		spec.Settings.KCMNodeMonitorGraceDuration = &metav1.Duration{Duration: shoot.MonitorGrace}
	}
	return spec
}

// isAsWritten reports whether an object is as it would be written, but for what is an operator's.
func isAsWritten(r *record, spec *v1alpha1.WatchedClusterSpec) bool {
	is := r.spec.DeepCopy()
	is.Paused = spec.Paused
	return equality.Semantic.DeepEqual(is, spec)
}
