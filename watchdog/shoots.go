package watchdog

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
		Changed: func(watch.Key, *gardener.Record, *gardener.Record) { w.fleet.changed() },
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

// halt ends the probes of an object's cluster, if there are any, and says why in its status.
func (f *fleet) halt(ctx context.Context, epoch int64, key watch.Key, r *record, m *member, why halt) {
	now := &member{uid: r.uid, end: func() {}} // without a generation: the status is still to be written
	if m != nil {
		m.end()
		f.put(key, now)
	}
	if m != nil && m.cluster != nil {
		f.w.o.Logger.InfoContext(ctx, "cluster not watched any more, what is scaled down stays so", "namespace", key.Namespace, "cluster", key.Name, "why", why.message())
		f.w.events.Record(eventOf(key, r.uid, cluster.Event{Reason: "ProbesEnded", Action: "Probe", Note: why.message(), Normal: true}))
	}
	if err := cluster.Halt(ctx, f.w.statuses(key), epoch, acceptedOf(r.generation, nil), string(why.why), why.message()); err != nil {
		f.w.o.Logger.WarnContext(ctx, "status not written, trying again", "namespace", key.Namespace, "cluster", key.Name, "err", err)
		return
	}
	now = &member{uid: r.uid, generation: r.generation, halt: why, end: func() {}}
	f.put(key, now)
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

// applyShoots has each shoot that is to be watched have a WatchedCluster, which its Cluster owns. One that is there stays while its shoot is not
// watched, and an operator may change it: it is written anew for another leader, or if what it should be has changed.
func (f *fleet) applyShoots(ctx context.Context, there map[watch.Key]*record) {
	var first error
	failed := 0
	for _, name := range f.w.shoots.Keys() {
		f.loop.Beat() // each may wait for the API server
		shoot := f.w.shoots.Get(name)
		key := watch.Key{Namespace: name.Name, Name: f.w.o.FileCluster}
		if shoot == nil || shoot.Halt != "" || !f.differs(key, there[key], shoot) {
			continue
		}
		spec := f.specOf(shoot)
		owner := metav1.OwnerReference{APIVersion: gardener.GroupVersion.String(), Kind: gardener.Kind, Name: name.Name, UID: shoot.UID}
		if err := f.w.apply(ctx, key, []metav1.OwnerReference{owner}, spec); err != nil {
			if failed++; first == nil {
				first = err
			}
			if errors.As(err, new(apierrors.APIStatus)) {
				continue
			}
			break // the API server does not answer: the others would wait, too
		}
		f.applied[key] = appliedShoot{spec: spec, at: time.Now()}
	}
	if first != nil && ctx.Err() == nil {
		f.w.o.Logger.WarnContext(ctx, "WatchedClusters of shoots not written, trying again", "failed", failed, "err", first)
	}
}

// specOf returns the spec of a shoot's WatchedCluster: what the file says, and what the shoot does.
func (f *fleet) specOf(shoot *gardener.Record) *v1alpha1.WatchedClusterSpec {
	spec := f.w.file.DeepCopy()
	if shoot.MonitorGrace > 0 {
		spec.Settings.KCMNodeMonitorGraceDuration = &metav1.Duration{Duration: shoot.MonitorGrace}
	}
	return spec
}

// differs reports whether the object of a shoot is to be written.
func (f *fleet) differs(key watch.Key, r *record, shoot *gardener.Record) bool {
	spec, last := f.specOf(shoot), f.applied[key]
	same := last.spec != nil && equality.Semantic.DeepEqual(last.spec, spec)
	if r == nil || r.owner != shoot.UID {
		return !same || time.Since(last.at) > lookEvery // what was written may not have come back yet
	}
	is := r.spec.DeepCopy()
	is.Paused = spec.Paused // which is an operator's
	return !same && !equality.Semantic.DeepEqual(is, spec)
}
